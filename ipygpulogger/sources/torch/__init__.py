"""torch: its allocators, their statistics and events, and the memory behind tensors.

=============  =====================================================================
allocators     torch's allocators
state          what torch has initialised and compiles, and whether each other thread has gone on
statistics     torch's statistics, and the wrappers around them
snapshot       the blocks of torch's CUDA allocator and the events that it recorded
history        these events, recorded while one of our recordings needs them
tensors        the memory behind tensors and graph nodes
=============  =====================================================================
"""
