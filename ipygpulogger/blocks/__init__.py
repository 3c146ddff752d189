"""Measure a block or a function, each line of it, or each epoch of a training; no notebook is needed."""
