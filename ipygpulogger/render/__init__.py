"""Turn records into strings; nothing here prints, displays or measures.

=============  ===========================================================================
text           the report of a scope as plain text: the table and its one-line form
headline       the same in one line: time, what moved, what is used, who grew
html           that line, which unfolds to a bar, a table and sentences; at most two kilobytes
growth         the names that grew, the rows of devices, what each source reports about itself
out_of_memory  the report of an allocation that failed
at_peak        what was alive when memory was highest: the kinds, and a table by name and place
estimate       what a function would need: the headline, what would be alive, the batch sizes
lines          the lines of a cell or function: a table as text or HTML, one sentence
fit            `%gpulog fit`: the line through the runs of a cell, as text and drawing
table          a table once, drawn as text and as HTML
markup         pieces of HTML: escaped text, tables, bars; a time series as blocks
owners         names by the memory they hold, and what releasing gave back
summary        the cells of a notebook, ranked; two runs compared; what a notebook displays of records
group          many processes: a row for each, or for those that stand out; the medians
plot_data      what the plot shows, in numbers: the time axis, the panels and their curves
plot           a notebook's memory over time, as a figure of matplotlib
page           the page of a run: its totals, its plot as SVG, every cell or the worst of very many
experiments    what ipyexperiments printed
=============  ===========================================================================
"""
