"""One measurement over many counters: a scope opens, closes, and returns what was used between the two.

Every measurement of the package is a `scope.Scope`. In the order in which it meets them:

============  =======================================================================
scope         open, close, result
machine       every source of the process; which scopes are open
frameworks    torch and its like, asked only once the user has imported them
devices       which device is which to the frameworks and to NVML
allocators    the frameworks' allocators in use
peaks         one counter, many intervals: the only caller of its reset
interval      the bounds of one peak
device_scope  one device in one scope, and its arithmetic
ledger        who holds the memory of a device
children      the child processes in one scope
metrics       energy and utilization in one scope
time_series   one figure over time, kept small
sampler       the background thread; `sampling` is what it does
settling      garbage collection and caches, around a measurement
open_scopes   the open scopes and the running loggers
notes         what could not be measured, each reason told once
now           a scope that closes as soon as it is open
============  =======================================================================
"""
