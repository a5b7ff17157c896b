"""The input: sources of examples, their partition into steps, and the pipeline of one worker."""
