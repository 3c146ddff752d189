"""Measure a scope: read every counter when it opens and when it closes, and return what was used in between.

Every measurement of the package is a `scope.Scope`. The files, in the order in which a scope uses them:

============  =======================================================================
scope         open, close, result
machine       what all scopes of the process share: sources, trackers, the open scopes
frameworks    torch, JAX and others, used only once the user has imported them
entry_points  sources that other distributions offer
devices       matches the frameworks' devices with those of NVML
allocators    the frameworks' allocators in use
peaks         the peaks of many intervals from one counter; the only caller of the counter's reset
interval      one scope's part of one counter, with the bounds of its peak
device_scope  one device in one scope, and how its figures are computed
ledger        who holds the memory of a device
child_peaks   every child process, and the tracker of its peaks
families      what forked children share with each other
children      the child processes in one scope
metrics       energy and utilization in one scope
time_series   one figure over time, kept small
sampler       the background thread; `sampling` is what it does
settling      garbage collection and caches, around a measurement
open_scopes   the open scopes and the running loggers
recorders     the running loggers, which keep the records of other processes
own_imports   memory that our own late imports take, which no measurement counts
notes         what could not be measured, each reason reported once
now           what is in use at this moment
============  =======================================================================
"""
