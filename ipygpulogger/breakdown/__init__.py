"""What was alive at the peak: the allocators' own events, replayed.

=============  ==========================================================================================
recording      `PeakRecording`: begun before a scope, ended after it, and turned into rows of its record
devices        `DeviceRecording`: torch's allocators meanwhile, on each device
replay         torch's events in; when memory was highest, and the blocks that were alive then, out
layout         where the blocks and segments of an allocator are, from one event to the next
allocator      how large a block torch's CUDA allocator makes for a request
training       watches backward passes and optimizer steps while a recording runs
seen           what was seen of them: passes, and what blocks held at some moments
graph          one quick walk of an autograd graph
held           what the memory behind values is for
names          which names hold which blocks at the end
kinds          what each block was for, from what was seen and from names
places         the user's line that a Python stack stands for
rows           blocks in, rows of `AtPeak` out
ram            `RamRecording`: the same of general RAM
ram_events     memray's events in; when most was asked for, and what was not freed then, out
ram_rows       those blocks in, rows of `AtPeak` out
ram_pages      how far resident memory rose for them
=============  ==========================================================================================
"""
