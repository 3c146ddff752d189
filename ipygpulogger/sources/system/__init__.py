"""General RAM and processes, as the operating system reports them. `process` is the entrance."""
