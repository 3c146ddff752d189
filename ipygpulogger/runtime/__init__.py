"""Helpers that keep this package from disturbing the user's process.

===============  ==============================================================================
errors           what an error says, in a few words
signals          errors that the user's signal handlers raised, as opposed to our own
classes          classes as the interpreter has them, whatever a metaclass of the user's defines
clock            seconds and the time of day, also where a test has frozen Python's clocks
living           a set of objects that it does not keep alive
collector        the garbage collector: our objects do not count towards its next automatic run
full_collection  full garbage collections: what one costs, and running one
output           printing to the user's streams, which may be closed or broken
files            files that are written whole or not at all
wrappers         functions of ours in place of a library's, and the library's own put back
frames           walking frames, tracebacks and code objects
shell            the IPython shell of this process, and the cells that run in it
calls            a context around every call of a function; whether a call still runs
===============  ==============================================================================
"""
