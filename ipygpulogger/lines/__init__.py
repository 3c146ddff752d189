"""Measure each source line of a cell or a function: hits, time, general RAM and each GPU.

================  ===================================================================================
tracing           what every tracing back end does: subscribers, and the events that are reported to them
sys_monitoring    the back end from Python 3.12 on
sys_settrace      the back end before
line_profiler     from `start` to `stop`: hits, time and memory of each line
frame_state       the line that each frame is at, and which line its memory is attributed to
line_memory       what each line used: every counter is read at each line boundary
================  ===================================================================================
"""
