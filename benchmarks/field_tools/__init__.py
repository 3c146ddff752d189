"""The tools of ``field.py``: each in a kernel and an environment of its own, all asked the same questions.

===============  ====================================================================================
`tools`          the table of tools: what to install, how to start it, how it says what a cell needed
`outputs`        reads the figures out of what each tool prints
`environments`   makes a virtual environment for each tool, from the package index
`kernels`        a real Jupyter kernel
`running`        the kernels of all tools, alive at the same time and asked in turns
`cost`           tables: an empty cell, busy cells, a sleeping cell, loading
`peaks`          table: memory of known size, needed for a moment
`growth`         tables: live objects, ten thousand cells
`gpu`            table: the same as `peaks` on the simulated GPU
`tables`         a table, and what it says about who comes first
`results`        the file of results, and the pages made from it
===============  ====================================================================================
"""
