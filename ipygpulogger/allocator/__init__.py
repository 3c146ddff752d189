"""torch's caching allocator: its rules, its recorded events, and a model of it.

=================  ======================================================================
rules              how large a block torch's caching allocator makes for a request
replay             the events, replayed to the moment when memory was highest
graph              the backward graph, and what it holds
places             the source line that asked for a block
caching_allocator  a model of it, for memory that is only estimated
=================  ======================================================================
"""
