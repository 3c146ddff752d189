"""Measure and report the cells of an IPython shell."""
