"""Measure each source line of a cell or a function: hits, time, general RAM and each GPU.

================  ===================================================================================
tracing           the back end that this Python has, which reports every line that runs
sys_monitoring    the back end from Python 3.12 on
sys_settrace      the back end before
tracing_backend   what both share: subscribers, and the events that are reported to them
spent             the time that tracing has cost each thread
line_profiler     from `start` to `stop`: hits, time and memory of each line
frame_state       the line that each frame is at, and which line its memory is attributed to
loops             the outermost loops of a code object: lines that run too often to measure one by one
cell_files        the files under which IPython compiles cells, and which cell each stands for
line_memory       what each line used: every counter is read at each line boundary
================  ===================================================================================
"""
