"""The state that a worker needs to go on: position, variables, callbacks and the user's values."""
