"""Known amounts of memory that come and go, measured, and held beside the truth: ``doctor --verify``."""
