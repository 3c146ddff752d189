"""A program whose lines are measured, with figures that are known by construction."""

import ast
import asyncio
import linecache
import sys
import threading
from itertools import count

import pytest
from memory import MB, Block, blip, held_transient

from ipygpulogger.lines.line_profiler import LineProfiler

CELL = ("", 0)
AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
numbers = count()


class Cell:
    """A program and what its lines used, by the words they begin with."""

    def __init__(self, source, *, whole=False, **names):
        self.filename = f"<cell {next(numbers)}>"
        linecache.cache[self.filename] = len(source), None, source.splitlines(keepends=True), self.filename
        tree = compile(source, self.filename, "exec", AWAITS | ast.PyCF_ONLY_AST)
        # As IPython runs a cell: each of its statements as a module. If `whole`, as Python runs a file.
        modules = [tree] if whole else [ast.Module([one], []) for one in tree.body]
        self.codes = [compile(one, self.filename, "exec", AWAITS) for one in modules]
        self.lines = LineProfiler(lambda frame: frame.f_code.co_filename == self.filename)
        self.names = {"Block": Block, "blip": blip, "held_transient": held_transient, "MB": MB, **names}
        self.error = None

    def execute(self):
        for code in self.codes:
            waits = eval(code, self.names)  # of a statement with `await` a coroutine
            if waits is not None:
                asyncio.run(waits)

    def run(self, error=None):
        self.lines.start()
        try:
            self.execute()
        except BaseException as raised:
            if error is None or not isinstance(raised, error):
                raise
            self.error = raised
        finally:
            self.lines.stop()
        return self

    @property
    def usages(self):
        return self.lines.result(lambda _: CELL)

    def __getitem__(self, start):
        found = [usage for usage in self.usages if usage.source.startswith(start)]
        assert len(found) == 1, (start, [usage.source for usage in self.usages])
        return found[0]

    def used(self, start):
        gen = self[start].gen
        return gen.consumed_bytes / MB, gen.peaked_bytes / MB

    def hits(self):
        return {usage.lineno: usage.hits for usage in self.usages}


def about(*sizes_mb):
    return pytest.approx(sizes_mb, abs=2)


def is_quiet():
    """Whether Python tells us of nothing that runs."""
    if sys.version_info >= (3, 12) and "ipygpulogger" in map(sys.monitoring.get_tool, range(6)):
        return False
    return sys.gettrace() is None and threading.gettrace() is None
