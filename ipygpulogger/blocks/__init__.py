"""Measure a block, a function or an epoch; no notebook is needed.

=============  ==================================================================
measure        a block or a function
measure_lines  each line of a function
epochs         each epoch of a training loop, for loops and framework callbacks
warn           one warning for what could not be measured, or not exactly
=============  ==================================================================
"""
