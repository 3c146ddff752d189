"""Measurements of a block, a function or an epoch: no notebook is needed.

=============  ==================================================
measure        a block or a function
measure_lines  each line of a function
epochs         one epoch of a training
=============  ==================================================
"""
