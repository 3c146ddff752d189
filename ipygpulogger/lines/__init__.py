"""Measure each source line of a cell or a function: hits, time, general RAM and each GPU."""
