"""How our code behaves inside the user's process, which it must not disturb.

==========  =============================================================================
clock       seconds and the time of day, also where a test has frozen Python's clocks
signals     what a signal handler raised, told apart from what failed
collector   the user's garbage collector, which our own work neither sets off nor brings nearer
output      our words on the user's streams
wrappers    functions of ours in the place of another library's, and theirs back again
frames      walking frames, tracebacks and code objects
calls       a context around every call of a function; whether a call still runs
files       a file is written whole or not at all
==========  =============================================================================
"""
