"""Which names hold memory, what made it grow, and how it is released.

===========  ==============================================================================
frames       exceptions, tracebacks and frames, read without running the user's code
referents    the objects that an object refers to, read in C
host_arrays  the memory blocks behind arrays, buffers and data frames
blocks       which block of memory belongs to which name, and which names share it
walk         the memory that can be reached from a name
roots        the names to start from: variables, Out, the last traceback, autograd graphs
cycles       reference cycles that wait for the garbage collector
libraries    memory that came with imported libraries
growth       which names account for what a cell consumed
release      drops what hides behind the shell
oom_message  the error of a device that is out of memory
oom_autopsy  why a cell ran out of memory, and the one next step
===========  ==============================================================================
"""
