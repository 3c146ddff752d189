"""One measurement over many counters: a scope is opened, closed, and says what was used between the two.

============  =======================================================================
peaks         the one tracker of a counter's resets: many scopes over one counter
timeline      the time series of one figure over a scope, kept small
sampler       the one background thread
ledger        who holds what on a device
machine       every source of the process, and the trackers of their peaks
device_scope  one device in one scope, and its arithmetic
scope         open, close, usage: every measurement is a scope
now           what is in use at this moment
============  =======================================================================
"""
