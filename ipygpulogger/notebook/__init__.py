"""IPython: what happens around each cell, from its events to its report.

=============  ============================================================================
cell_events    IPython's events, filtered to "a real cell began" and "it ended"
cell_options   what a cell asks for itself: ``%%gpulog``
cell_lines     the lines of a cell, and of functions that earlier cells defined
between_cells  what changed between the end of one cell and the beginning of the next
live           the display of a long cell while it runs
logger         `IPyGPULogger`: a record and a report for each cell
magics         ``%gpulog``
=============  ============================================================================
"""
