"""Measure and report the cells of an IPython shell.

The files, in the order in which a cell uses them:

==============  ===========================================================================
extension       what loading and unloading the extension does
magics          ``%gpulog`` and ``%%gpulog``
completion      what completion offers in a line of ``%gpulog``, and how IPython asks for it
logger          `IPyGPULogger`: begins and ends each cell, and passes its record to the sinks
options         the options of a logger, the values that each accepts, and the help of the magics
quiet           which cells are quiet: they moved less than a threshold
cell            a cell, the options that it sets for itself, and IPython's events: it began, it ended
measured_cell   the running cell and all that measures it, and what changed since the cell before
enrichers       what its record says beyond the figures, step by step, each tried alone
cell_lines      the lines of a cell, and of functions that earlier cells defined
live            the figures of a long cell while it runs
live_display    where they are shown: one line among the output of the cell
report          the report of a cell, printed or displayed
==============  ===========================================================================
"""
