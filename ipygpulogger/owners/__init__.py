"""Which names hold memory, what made it grow, what of it is garbage, and what an out-of-memory error left."""
