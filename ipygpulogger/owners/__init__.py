"""Which names hold memory, what made it grow, and how it is released.

Finding what a name holds:

=============  ==========================================================================================
exceptions     exceptions, tracebacks and frames, read without running the user's code
user_code      which code is the user's
referents      the objects that an object refers to, found in C
host_arrays    the memory behind Python's, numpy's and Arrow's objects
array_readers  the same for every library: readers return the memory behind a value
mapped_memory  what is mapped from files, and what is resident
address_space  the ranges of addresses that are mapped
memory_blocks  blocks of memory that overlap
attribution    which name each block is attributed to, and which names share it
walk           from each name to everything that is reachable from it
bindings       what each name is bound to, by identity
roots          the names to start from: variables, `Out`, the last traceback, the user's modules
=============  ==========================================================================================

What uses this:

=============  ==========================================================================================
snapshot       which names held which blocks at one moment, and how much each grew until another
growth         the names to which a cell's consumption is attributed
libraries      memory that came with imported libraries
known_paths    one path to each large block, followed again without a walk
hidden_memory  what names may hold besides the blocks that a walk finds
uncollected    what waits for a full collection, and the decision to run one
cycles         memory that unreachable reference cycles hold, found without collecting them
release        drops the shell's hidden references
oom_error      recognises an out-of-memory error
oom_message    reads the figures in its message
oom_asked      the exact size of the allocation that failed
oom_batch      the batch size of the failed code
dimensions     how large the data of a cell was, found in the names of its code
fingerprint    which cells have the same code but for numbers
oom_again      whether a cell was told to run again, and did so in vain
oom_autopsy    the figures at the error, and the one next step
oom_examine    makes an autopsy while memory is as the error left it
=============  ==========================================================================================
"""
