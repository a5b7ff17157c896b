"""Facts known of an operation before anything is computed: sizes and states of its tensors."""
