"""Turn records into strings; nothing here prints, displays or measures.

=============  ===========================================================================
text           the report of a scope as plain text: the table and its one-line form
headline       the same in one line: time, what moved, what is used, who grew
html           that line, which unfolds to a bar, a table and sentences; at most two kilobytes
growth         sentences below the figures: what changed since the previous cell, what grew
out_of_memory  the report of an allocation that failed
at_peak        what was alive when memory was highest: the kinds, and a table by name and place
estimate       what a function would need: the headline, what would be alive, the batch sizes
lines          the lines of a cell or function: a table as text or HTML, one sentence
fit            how the memory of a cell grows with the size of its data
fit_drawing    the same as a drawing: points, the line, where the room ends
sparkline      a time series as a line of block characters, and as a drawing
devices        the names of devices, and how the memory of each is divided
markup         what HTML reports are made of: lines, tables, bars, folds
diagnoses      what each source of figures reports about itself
owners         the table of the names that hold memory
freed          how much memory dropping hidden references freed
summary        the cells of a notebook, ranked
group_rows     many processes: their rows, who stands out, who is missing
group          the same as a table of text
group_html     the same as HTML, one line that unfolds
comparison     two runs of a notebook, compared
plot_axis      the time of the plot: the cells from left to right, long idle times shortened
plot_layers    its memory: the stacked parts of a device's memory, and how they are thinned
plot_panels    a panel for RAM and for each device: its layers, peaks and limits
plot_style     its colours, and how foreign text is put into it
plot_time      its drawn time: bands and their numbers, ticks, gaps
plot           the plot as a matplotlib figure
plot_svg       the same as SVG for a page
displays       what a notebook displays of a record, a history, a line: loaded with the first of them
folded         the figures of very many cells as tables
page           a notebook's report as one self-contained HTML page
experiments    what ipyexperiments printed
=============  ===========================================================================
"""
