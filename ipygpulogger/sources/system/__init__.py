"""General RAM and processes, as the operating system reports them. `process` is the entrance.

===============  =================================================================================
system_calls     system calls that keep the GIL
linux            what Linux says of a process: `getrusage`, the files below `/proc`, their resolution
high_water_mark  the kernel's peak of resident memory, which Linux can reset
ram_limit        how much RAM there is and is left: the machine's, or under a limit of a container
limit_diagnosis  what the doctor says about memory limits
rss_watcher      the process that samples resident memory where no counter has peaks
memray           each allocation, and the line that asked for it
child_process    one child process: its memory, its mark, and what it shares
forked           what children leave that Python code forked while something was measured
process          `Process`: all of the above as this system offers it, and which children there are
===============  =================================================================================
"""
