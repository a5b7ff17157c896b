"""What is known of an operation before anything is computed: sizes, and what workers hold."""
