"""What `doctor` checks: each module knows one side of a host."""
