"""The other frameworks, a file each.

=============  =========================================================================
jax            XLA's allocators
cupy           CuPy's default memory pools
tensorflow     TensorFlow's allocators
rmm            RMM's statistics
user_counters  the peaks that users read from a framework, kept true while we reset them
=============  =========================================================================
"""
