"""torch: its allocators, their events, and the memory behind tensors. `allocators` is the entrance."""
