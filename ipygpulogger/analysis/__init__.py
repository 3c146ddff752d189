"""What many records say together: ranked, compared, fitted; leaks, imbalance, budgets. Pure functions.

=========  =============================================================================
notable    what of one record is worth telling: what moved, what matters, what is nearly full or over budget
leaks      cells that grow with every run
ranking    cells ranked by what they used, and what a summary says of a run
totals     a run as a whole, and what a page shows of very many cells
compare    two runs of a notebook
fit        how the memory of a cell grows with the size of its data
group      `Group`: what many processes used in the same cell
imbalance  how the figures of many processes are spread, and which stand out
=========  =============================================================================
"""
