"""What the names of fastai v1 and ipyexperiments promised, on this package's counters.

``utils`` and ``experiments`` are the doors to it.

==============  ============================================================================
gpu_memory      ``gpu_mem_get`` and its kin: one GPU from outside
tracebacks      ``gpu_mem_restore`` and its kin: an exception goes on without the memory it held
dataframes      ``reduce_mem_usage``: a DataFrame in smaller types
experiment      ``IPyExperiments``: a part of a notebook that cleans up after itself
standard_names  what fastai's star import brought along
==============  ============================================================================
"""
