"""What fastai v1 and ipyexperiments offered, on this package's counters; users import it from the doors.

================  ============================================================================
mem               ``gpu_mem_get`` and the like, `reduce_mem_usage`
gpu_mem_trace     ``GPUMemTrace``: what a piece of code used on the current device
tracebacks        ``gpu_mem_restore`` and the like: an exception releases the memory it holds
experiment        ``IPyExperiments``: a part of a notebook that cleans up after itself
experiment_cells  its cells, its figures and the variables of a notebook
================  ============================================================================
"""
