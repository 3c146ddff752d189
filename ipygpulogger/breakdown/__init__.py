"""What was alive at the peak, from the events of allocators, which `allocator` replays; see `recording`."""
