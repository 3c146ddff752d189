"""Measure a scope: read every counter when it opens and when it closes, and return what was used in between.

============  =======================================================================
scope         every measurement of the package: open, close, result
machine       what all scopes of the process share: sources, trackers, the open scopes
frameworks    torch, JAX and others, used only once the user has imported them
devices       the frameworks' allocators in use, their devices matched with NVML's
peaks         the peaks of many intervals from one counter; the only caller of the counter's reset
device_scope  one device in one scope: its memory, energy and utilization, and the figures over time
ledger        who holds the memory of a device
children      the child processes: their peaks, what they have in one scope, what forked ones share
sampler       what is open, as the machine treats it, and the thread that samples it
settling      garbage and caches around a measurement, and the memory that our own late imports take
============  =======================================================================
"""
