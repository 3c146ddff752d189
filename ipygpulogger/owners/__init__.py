"""Which names hold memory, what made it grow, and how it is released.

Finding what a name holds:

=============  ==========================================================================================
exceptions     what exceptions hold, and which of them say that memory ran out
referents      the objects that an object refers to, found in C
memory_blocks  the memory behind objects: Python's, numpy's, Arrow's, and by the readers of all frameworks
address_space  the address space of this process: its mappings, and the memory of mapped files
attribution    which name each block is attributed to, and which names share it
walk           from each name to everything that is reachable from it
roots          the names to start from: variables, `Out`, the last traceback, modules; dropping hidden ones
=============  ==========================================================================================

What uses this:

=============  ==========================================================================================
snapshot       which names held which blocks at one moment, and how much each grew until another
growth         the names, and the imported libraries, to which a cell's consumption is attributed
garbage        garbage: when a full collection runs, and the proof that what was dropped is garbage
dimensions     how large the data of a cell was, and whether its source is the same
oom_snapshot   memory as an out-of-memory error left it
oom_advice     what is reported of such an error, with the one next step
=============  ==========================================================================================
"""
