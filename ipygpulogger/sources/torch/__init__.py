"""torch: its allocators, their events, and the memory behind tensors.

===========  ===================================================================
allocators   torch's allocators and their statistics
state        what torch has initialised and compiles
snapshot     the blocks of torch's CUDA allocator and the events that it recorded
history      these events, recorded while one of our recordings needs them
tensors      the memory behind tensors and graph nodes
===========  ===================================================================
"""
