"""What was alive at the peak: the allocators' own events, which `allocator` replays.

=============  ==========================================================================================
recording      `PeakRecording`: begun before a scope, ended after it, and turned into rows of its record
devices        `DeviceRecording`: torch's allocators meanwhile, on each device
training       watches backward passes and optimizer steps while a recording runs
kinds          what each block was for
names          which names hold them
rows           labelled blocks in, rows of `AtPeak` out
ram            general RAM at its peak, from the allocations that memray recorded
ram_rows       who asked for them
=============  ==========================================================================================
"""
