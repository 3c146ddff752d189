"""The same figures for each source line of a cell or a function.

=============  ============================================================================
dispatcher     who is told of the lines that run, and what each is told
monitoring     `sys.monitoring` reports lines, from Python 3.12 on
settrace       `sys.settrace` does before
tracing        the one of the two that this Python has
line_memory    one look at each line boundary, attributed to the lines that were open then
frame_state    the line that each frame is at; lines that run too often to be measured
line_profiler  a scope whose figures are attributed to lines
=============  ============================================================================
"""
