"""Implement what fastai v1 and ipyexperiments offered, on this package's counters.

Users import these names from `utils` and `experiments`.

====================  ==========================================================================
gpu_memory            ``gpu_mem_get`` and the like: the memory of a device, all processes together
gpu_mem_trace         ``GPUMemTrace``: what a piece of code used on the current device
tracebacks            ``gpu_mem_restore`` and the like: an exception releases the memory it holds
empty_frames          clearing the local variables of a traceback's frames
dataframes            ``reduce_mem_usage``: a DataFrame in smaller types
experiment            ``IPyExperiments``: a part of a notebook that cleans up after itself
experiment_cells      ``CellLogger``: the report of each of its cells
experiment_figures    what it consumed, what came back, what is available
experiment_variables  the user's variables: which are new, and forgetting their values
standard_names        the standard library's names that fastai's star import brought along
====================  ==========================================================================
"""
