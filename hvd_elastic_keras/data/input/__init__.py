"""The input of one worker in one round."""
