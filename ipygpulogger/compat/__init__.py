"""Implement what fastai v1 and ipyexperiments offered, on this package's counters.

Users import these names from `utils` and `experiments`.

====================  ==========================================================================
gpu_memory            ``gpu_mem_get`` and the like: the memory of a device, all processes together
gpu_mem_trace         ``GPUMemTrace``: what a piece of code used on the current device
tracebacks            ``gpu_mem_restore`` and the like: an exception releases the memory it holds
dataframes            ``reduce_mem_usage``: smaller columns of a data frame
experiment            ``IPyExperiments``: a part of a notebook that cleans up after itself
experiment_cells      the cells, figures and variables of an experiment
====================  ==========================================================================
"""
