"""The checks of `doctor`; each module examines one aspect of a host."""
