"""Helpers that keep this package from disturbing the user's process.

===============  ==============================================================================
errors           what an error says, errors that a user's signal handler raised
objects          objects of the user's: their classes as the interpreter has them
clock            seconds and the time of day, also where a test has frozen Python's clocks; our own cost
collector        the garbage collector: it does not run during our work; what a collection costs
output           what is printed to streams that may be broken, files that are written whole or not at all
wrappers         functions of ours in place of a library's, and a context around every call of a function
shell            the IPython shell of this process, the cells that run in it, which code is the user's
===============  ==============================================================================
"""
