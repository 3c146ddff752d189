"""Measure a block, a function or an epoch; no notebook is needed.

=============  ==========================================================
measure        `measure`: a scope around a block, a call, a generator
measure_lines  each line of a function
watch_epochs   `watch_epochs`: a scope and a record for each epoch of a training
=============  ==========================================================
"""
