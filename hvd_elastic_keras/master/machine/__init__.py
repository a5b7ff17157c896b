"""The pure part of the master: state, events and actions. No clock, socket or process."""
