"""Measure a block, a function or an epoch; no notebook is needed.

=============  ==========================================================
measure        a block or a function
overlaps       what runs at the same time in one process
measure_lines  each line of a function
watch_epochs   each epoch of a training loop
epoch_scope    the same for the callbacks of training frameworks
epoch_record   what one epoch used
warn           one warning for what could not be measured, or not exactly
=============  ==========================================================
"""
