"""Imported by the kernels of the soak: what the process has, counted from inside, and objects whose end is watched."""

import ast
import asyncio
import collections
import ctypes
import functools
import gc
import logging
import signal
import sys
import warnings
import weakref

import executing
import IPython

PACKAGE = "ipygpulogger"
_watched = []  # weak references to the user's objects
_history = {"of": None, "count": 0, "ids": set(), "bytes": 0, "types": collections.Counter()}


class Big(bytearray):
    """Memory of the user's whose end can be seen."""

    def __repr__(self):
        return "Big()"


class Mallinfo(ctypes.Structure):
    """What glibc's mallinfo2() returns."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in ("arena", *"abc", "hblkhd", *"de", "uord", *"fg"))


def watch(one):
    """See when this object of the user's ends; returns it."""
    _watched.append(weakref.ref(one))
    return one


def big(size_kb):
    """Return memory whose end is seen."""
    return watch(Big(size_kb << 10))


async def letters():
    """A generator that is left open."""
    local = big(10)
    yield type(local).__name__


def module(version):
    """Return the text of a module that changes; no two versions are of the same length."""
    return f"class Thing:\n    def f(self): return {version}\ndef version(): return {version}\n#{'x' * version}\n"


def types():
    """Count what the collector tracks, by class, without the history's records."""
    _weigh_history()
    found = collections.Counter(map(type, gc.get_objects()))
    found.subtract(_history["types"])
    by_name = collections.Counter()
    for one, count in found.items():
        by_name[f"{one.__module__}.{one.__qualname__}"] += count
    return by_name


def sample():
    """Collect garbage, and count."""
    _drop_trees()
    gc.collect()
    _watched[:] = [weak for weak in _watched if weak() is not None]
    by_type = types()
    heap = ctypes.CDLL(None).mallinfo2
    heap.restype = Mallinfo
    in_use, torch = heap(), sys.modules["torch"]
    return {
        "malloc_bytes": in_use.uord + in_use.hblkhd,
        "python_blocks": sys.getallocatedblocks() - len(_history["ids"]),
        "objects": by_type.total(),
        "our_objects": sum(n for name, n in by_type.items() if name.startswith(PACKAGE)),
        "user_objects": len(_watched),
        "callbacks": _callbacks(),
        "device_bytes": torch.cuda.memory_allocated(),
        "modules": sum(name.startswith(PACKAGE) for name in sys.modules),
        "records": _history["count"],
        "history_bytes": _history["bytes"],
    }


def _drop_trees():
    """Drop the syntax trees that tracebacks left in caches.

    Which library's file an interrupt falls into is chance, and the tree of one is up to 100,000 objects.
    """
    for kind in (executing.Source, *executing.Source.__subclasses__()):
        for name in ("__source_cache_with_lines", "__executing_cache"):
            kind._class_local(name, {}).clear()
    for one in gc.get_objects():
        if isinstance(one, functools._lru_cache_wrapper) and str(one.__module__).startswith("executing."):
            one.cache_clear()
        elif isinstance(one, ast.AST) and not one._fields:
            vars(one).clear()  # of `ast.Load` there is one object: its `parent` is in the last tree


def blocks_per_record():
    """Forget the history; how many of Python's blocks each record had held."""
    records = _logger().history._records
    count, before = len(records), sys.getallocatedblocks()
    records.clear()
    return (before - sys.getallocatedblocks()) / count if count else 0


def _logger():
    magics = sys.modules.get(f"{PACKAGE}.notebook.magics")
    return magics and magics.GpulogMagics.of(IPython.get_ipython()).extension


def _callbacks():
    """Count what waits to be called, wherever that can be counted; atexit counts what was unregistered too."""
    shell = IPython.get_ipython()
    lists = [
        *shell.events.callbacks.values(), gc.callbacks, sys.meta_path, sys.path_hooks, warnings.filters,
        logging.getLogger().handlers, shell.configurables, shell.input_transformer_manager.line_transforms,
        shell.input_transformer_manager.cleanup_transforms, *shell.magics_manager.magics.values(),
        shell.Completer.custom_matchers, asyncio.all_tasks(), weakref.finalize._registry, shell.display_pub._hooks,
    ]  # fmt: skip
    handlers = [n for n in signal.valid_signals() if callable(signal.getsignal(n))]
    traced = (sys.gettrace(), sys.getprofile(), vars(shell.display_pub.session).get("send"))
    return sum(map(len, lists)) + len(handlers) + sum(one is not None for one in traced)


def _weigh_history():
    """Weigh the records that the history has got since the last time; what two share counts once."""
    logger = _logger()
    if logger is None or logger is not (_history["of"] and _history["of"]()):
        _history.update(
            of=logger and weakref.ref(logger), count=0, ids=set(), bytes=0, types=collections.Counter()
        )
    if not logger:
        return
    records, ids = logger.history._records, _history["ids"]
    waiting = records[_history["count"] :]
    _history["count"] = len(records)
    while waiting:
        one = waiting.pop()
        ours = type(one).__module__.startswith(PACKAGE)
        if id(one) in ids or not (ours or type(one) in (str, bytes, int, float, tuple, list, dict)):
            continue
        ids.add(id(one))
        _history["bytes"] += sys.getsizeof(one)
        _history["types"][type(one)] += gc.is_tracked(one)
        waiting += [two for two in gc.get_referents(one) if not isinstance(two, type)]
