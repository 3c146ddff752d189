"""Measure each source line of a cell or a function: hits, time, general RAM and each GPU.

================  ===================================================================================
tracing           what every tracing back end does: subscribers, and the events that are reported to them
backends          `sys.monitoring`, and `sys.settrace` before Python 3.12
line_profiler     from `start` to `stop`: hits, time and memory of each line
frame_state       the line that each frame is at, and which line its memory is attributed to
line_memory       what each line used: every counter is read at each line boundary
================  ===================================================================================
"""
