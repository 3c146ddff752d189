"""torch's caching allocator: its rules, its recorded events, and a model of it."""
