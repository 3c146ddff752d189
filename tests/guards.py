"""Calls that fail while they hold memory, and the guards that release it."""

import builtins
import weakref

from ipygpulogger.compat.tracebacks import (
    gpu_mem_restore,
    gpu_mem_restore_ctx,
    ipython_tb_clear_frames,
    ipython_tb_clear_frames_ctx,
)

GROUPS = hasattr(builtins, "ExceptionGroup")  # came with 3.11
OURS, FASTAIS = "IPYGPULOGGER_TB_CLEAR_FRAMES", "FASTAI_TB_CLEAR_FRAMES"
NO_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"
ASSERTED = "CUDA error: device-side assert triggered"
RESTART = (  # word by word
    "When 'device-side assert triggered' error happens, it's not possible to recover and you must restart the "
    "kernel to continue. Use os.environ['CUDA_LAUNCH_BLOCKING']=\"1\" before restarting to debug"
)


class Thing:
    """Memory, of which it is known whether it is still held."""


def caught(function, *args):
    """The exception that a call ends with, which keeps its traceback alive."""
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("it did not fail")


def step(error, held):
    mine = Thing()
    held.append(weakref.ref(mine))
    raise error


def lets_go(guarded, error=None):
    """Whether a failed call's memory is back while its exception is still held."""
    held, error = [], error or ValueError("x")
    raised = caught(guarded(step), error, held)
    assert raised is error
    assert raised.__traceback__.tb_next is not None
    return held[0]() is None


def within(context):
    """A decorator that calls a function in a context."""

    def guarded(function):
        def call(*args):
            with context():
                return function(*args)

        return call

    return guarded


CONTEXTS = [gpu_mem_restore_ctx, ipython_tb_clear_frames_ctx]
GUARDS = {
    "gpu_mem_restore": gpu_mem_restore,
    "ipython_tb_clear_frames": ipython_tb_clear_frames,
    **{context.__name__: within(context) for context in CONTEXTS},
}


# -- what is let go --------------------------------------------------------------------------------


def marked(held):
    thing = Thing()
    held.append(weakref.ref(thing))
    return thing
