"""IPython: what happens around each cell, from its events to its report.

In the order in which a cell meets them:

==============  ===========================================================================
magics          ``%gpulog`` and ``%%gpulog``, and what loading the extension does
logger          `IPyGPULogger`: measures each cell, keeps its record, has it reported
options         the options of a logger, and what each takes
cell_events     IPython's events, filtered to "a real cell began" and "it ended"
cell            one running cell, as IPython describes it
cell_options    what a cell's text asks for: ``%%gpulog``
measured_cell   the running cell and everything that measures it, until it is over
between_cells   memory that came or went since the cell before
cell_lines      the lines of a cell, and of functions that earlier cells defined
live            the display of a long cell while it runs
live_display    where that is: under the cell of a notebook
live_terminal   or in the line of a terminal
tap             a method that tells of its calls, by which these two see other output
report          what is printed and displayed
==============  ===========================================================================
"""
