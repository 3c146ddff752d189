"""How a guest behaves in the user's process: clock, streams, signals, wrappers, collector, frames."""
