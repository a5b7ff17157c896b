"""What a worker must have to go on: position, variables, callbacks and values of the user."""
