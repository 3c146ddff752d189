"""Measure and report the cells of an IPython shell.

The files, in the order in which a cell uses them:

==============  ===========================================================================
extension       what loading and unloading the extension does
magics          ``%gpulog`` and ``%%gpulog``
help            the subcommands of ``%gpulog``, and what help says
matchers        through which IPython asks for completions
completion      what completion offers in a line of ``%gpulog``
logger          `IPyGPULogger`: measures each cell, keeps its record and shows the report
options         the options of a logger, and the values that each accepts
quiet           which cells have no report
threshold       what a cell must reach under the option ``quiet``
cell_events     IPython's events, filtered to "a real cell began" and "it ended"
cell            one running cell, as IPython describes it
cell_options    the options of ``%%gpulog`` in a cell's first line
measured_cell   the running cell and everything that measures it, until it ends
between_cells   memory that was allocated or freed since the previous cell
cell_lines      the lines of a cell, and of functions that earlier cells defined
live            the display of a long cell while it runs
live_display    the live display in a notebook, one line among the cell's output
live_terminal   the live display in a terminal, at the cursor's line
tap             callbacks before each call of a method, by which these two notice other output
report          prints and displays the reports
rich_report     a report as IPython displays it
==============  ===========================================================================
"""
