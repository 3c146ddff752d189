"""An interrupt at any point of the package: walked over one by one, or as real signals at random moments.

A signal's handler runs between two steps of Python code: where a function begins, where a loop goes round, and
after each call. `walk` compiles the package anew so that each of these points, and each statement, may raise a
KeyboardInterrupt, without any trace function, which would collide with those that measure lines. One run for
each point that a scenario reaches; after it the next cell must be right, and after `stop` nothing may be left.

As a program, in a process of its own: ``interrupt_injection.py walk|signals SCENARIO COUNT [SEED [FILE]]`` prints what went wrong.
"""

import ast
import builtins
import contextlib
import faulthandler
import gc
import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

STRIKES = int(os.environ.get("STRIKES", "12"))  # 0: each point
SIGNALS = int(os.environ.get("SIGNALS", "30"))  # for each of the scenarios
MB = 2**20
TOOLS = range(6)
HANGS_S = 120  # no single round takes so long, on a busy machine either


# -- where an interrupt can strike -------------------------------------------------------------------


class Aim:
    """Which point is struck, and which were reached."""

    def __init__(self):
        self.armed, self.phase, self.target, self.struck = False, "", None, False
        self.reached = {}  # (phase, point): how often
        self.places = []  # by point: where it is

    def point(self, number):
        """The code of the package has come to this point."""
        if self.armed and threading.current_thread() is threading.main_thread():
            here = self.phase, number
            self.reached[here] = self.reached.get(here, 0) + 1
            if here == self.target:
                self.target, self.struck = None, True
                raise KeyboardInterrupt

    def after(self, value, number):
        """A call has returned this."""
        self.point(number)
        return value

    @contextlib.contextmanager
    def at(self, phase):
        """What runs within may be struck."""
        self.armed, self.phase = True, phase
        try:
            yield
        finally:
            self.armed = False


class Points(ast.NodeTransformer):
    """Puts points into functions: before each statement, and after each call."""

    def __init__(self, aim, path):
        self._aim, self._path, self._depth = aim, path, 0

    def _number(self, node, kind):
        self._aim.places.append(f"{self._path}:{node.lineno}:{node.col_offset} {kind}")
        return ast.Constant(len(self._aim.places) - 1)

    def _function(self, node):
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        node.args = self.visit(node.args)
        self._depth += 1
        node.body = self._block(node.body)
        self._depth -= 1
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_ClassDef(self, node):
        depth, self._depth = self._depth, 0
        self.generic_visit(node)
        self._depth = depth
        return node

    def visit_Call(self, node):
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if not self._depth or name in ("super", "__strike_before__", "__strike_after__"):
            return node
        return ast.Call(ast.Name("__strike_after__", ast.Load()), [node, self._number(node, "after")], [])

    def _block(self, statements):
        found = []
        for statement in statements:
            docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if self._depth and not docstring:
                name, number = ast.Name("__strike_before__", ast.Load()), self._number(statement, "before")
                found.append(ast.copy_location(ast.Expr(ast.Call(name, [number], [])), statement))
            found.append(self.visit(statement))
        return found

    def generic_visit(self, node):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, self._block(value))
            elif isinstance(value, list):
                setattr(node, name, [self.visit(one) if isinstance(one, ast.AST) else one for one in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node


class Struck(SourceFileLoader, MetaPathFinder):
    """Imports the package with points in it."""

    aim, points = Aim(), Points

    def __init__(self, fullname="", path=""):
        super().__init__(fullname, path)

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.partition(".")[0] != "ipygpulogger":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = cls(fullname, spec.origin)
        return spec

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        short = path.rpartition("ipygpulogger" + os.sep)[2]
        tree = ast.fix_missing_locations(self.points(self.aim, short).visit(tree))
        return compile(tree, path, "exec", dont_inherit=True)

    @classmethod
    def install(cls):
        builtins.__strike_before__, builtins.__strike_after__ = cls.aim.point, cls.aim.after
        sys.meta_path.insert(0, cls)
        return cls.aim


# -- what is run --------------------------------------------------------------------------------------

KEEP = "kept = Block(4)\nblip(12)\n"
BY_LINE = "def work():\n    blip(12)\n    return Block(4)\nkept = work()\n"
DIES = "kept = Block(4)\nblip(12)\nraise ValueError('mine')\n"
ON_GPU = (
    "held = torch.empty(32 << 20, dtype=torch.uint8, device='cuda')\n"
    "_t = torch.empty(64 << 20, dtype=torch.uint8, device='cuda'); del _t\n"
)
SCENARIOS = {  # the cell that is struck, the logger's options
    "plain": (KEEP, {}),
    "lines": (BY_LINE, {"lines": True}),
    "fails": (DIES, {}),
    "live": ("import time\n" + KEEP + "time.sleep(0.02)\n", {"report": "rich"}),
    "gpu": (KEEP, {"devices": "all", "metrics": ("energy", "utilization")}),
    "stops": ("il.stop()\n", {"lines": True}),
    "expected": ("%%gpulog --lines\n" + BY_LINE, {}),
    "torch": (ON_GPU, {}),
    "torch lines": (ON_GPU, {"lines": True}),
}


class Session:
    """A shell, a logger, and what one looks at."""

    def __init__(self, name):
        from IPython.core.interactiveshell import InteractiveShell
        from memory import Block, blip
        from traitlets.config import Config

        import ipygpulogger
        from ipygpulogger.engine import machine, sampler
        from ipygpulogger.notebook import live, logger

        self.name = name
        self.cell, self.options = SCENARIOS[name]
        config = Config(HistoryManager={"enabled": False})
        self.shell = InteractiveShell.instance(config=config)
        self.shell.user_ns.update(Block=Block, blip=blip, tools=tools, sys=sys)
        self.machine = machine.machine()
        live.AFTER_S, live.EVERY_S = 0.0, 0.001
        if name == "live":
            from places import Publisher

            self.publisher = Publisher()
            logger.display_for = lambda *_: live.LiveDisplay(self.publisher)
        looked = threading.Event()
        if name in ("live", "gpu"):  # the sampler looks in short cells too

            def look():
                self.machine.sample()
                looked.set()

            self.machine.sampler = sampler.Sampler(look, delay_s=0.0, period_s=0.0)
        if name.startswith("torch"):
            import torch

            self.torch = self.shell.user_ns["torch"] = torch
            torch.cuda.synchronize()
            wrapped = [found for found in vars(torch._C) if "emory" in found or "Peak" in found]
            self.stock = {found: getattr(torch._C, found) for found in wrapped}
        self.loaded = name == "expected"
        self.make = ipygpulogger.IPyGPULogger
        self.il = self.new()
        self.il.start()  # once, so that what is loaded once is
        self.run(self.cell)
        while name in ("live", "gpu") and not (looked.is_set() and (name == "gpu" or self.publisher.sent)):
            self.run(self.cell)  # its threads had no turn on a busy machine
        self.il.stop()
        self.forget()
        if self.loaded:
            del self.shell.user_ns["il"]
            self.shell.extension_manager.load_extension("ipygpulogger")
            self.shell.user_ns["il"].stop()
        self.before = self.surroundings()
        self.stock_callbacks = {event: list(found) for event, found in self.shell.events.callbacks.items()}
        gc.collect()
        gc.freeze()

    def new(self):
        self.il = self.make(**{"report": "text", **self.options})
        self.shell.user_ns["il"] = self.il
        return self.il

    def run(self, code):
        return self.shell.run_cell(code, store_history=True)

    def surroundings(self):
        """What else of the shell's a logger changes."""
        shell = self.shell
        magics = [kind for kind, named in shell.magics_manager.magics.items() if "gpulog" in named]
        return len(shell.configurables), len(shell.input_transformer_manager.line_transforms), magics

    def forget(self):
        for name in ("kept", "held", "_t"):
            self.shell.user_ns.pop(name, None)
        for name in ("last_traceback", "last_value", "last_exc", "last_type"):
            sys.__dict__.pop(name, None)
        self.shell.last_execution_result = None
        gc.collect()  # what an interrupted cell held is garbage, which Python may free within any later line

    # -- one run ------------------------------------------------------------------------------------

    def go(self, phase):
        """The scenario as a user would go through it, with an interrupt somewhere."""
        with phase("start"):
            if self.loaded:
                self.il = self.shell.user_ns["il"]
            else:
                until_done(self.new)
                until_done(self.il.start)
        with phase("cell"):
            try:
                self.run(self.cell)
            except KeyboardInterrupt:
                pass  # it went through IPython
        self.forget()
        if self.name == "stops":
            until_done(self.il.stop)
            until_done(self.il.start)
        elif self.loaded:
            self.il.start()
        try:
            problems = self.next_cell()
        finally:
            with phase("stop"):
                until_done(self.il.stop)
        return [*problems, *self.left()]

    def next_cell(self):
        """What is wrong with the cells after it."""
        problems, il = [], self.il
        il.lines, count = False, len(il.history)
        result = self.run("seen = sys.gettrace(), tools()\n" + KEEP)
        if not result.success or len(il.history) != count + 1:
            return [f"the next cell: {result.success}, {len(il.history) - count} records"]
        if self.shell.user_ns["seen"] != (None, []):
            problems.append(f"the next cell is traced: {self.shell.user_ns['seen']}")
        problems += wrong("the next cell", il.record.gen, 4, 12)
        if il.record.status != "ok" or il.record.lines or not il.record.label.startswith("In ["):
            problems.append(f"the next cell: {il.record.status}, {il.record.label}, {il.record.lines}")
        self.forget()
        il.lines = True
        self.run(BY_LINE)
        lines = {line.lineno: line for line in il.record.lines if not line.place}
        if [(n, lines[n].hits) for n in sorted(lines)] != [(1, 1), (2, 1), (3, 1), (4, 1)]:
            problems.append(f"the lines after it: {il.record.lines}, {il.record.notes}")
        else:
            problems += wrong("line 2", lines[2].gen, 0, 12) + wrong("line 4", lines[4].gen, 4, 8)
        self.forget()
        il.lines = False
        if self.name.startswith("torch"):
            self.run(ON_GPU)
            gpu = il.record.gpus[0]
            found = gpu.consumed_bytes / MB, gpu.peaked_bytes / MB, gpu.peak.quality
            if found != (32, 64, "exact"):
                problems.append(f"the next cell on the GPU: {found}")
            self.forget()
        return problems

    def left(self):
        """What is still there of us."""
        found = {
            **left_anywhere(self.machine),
            "cells": list(self.il._cells),
            "live cells": list(self.il._live.running),
            "something in the shell": self.surroundings() != self.before and self.surroundings(),
            "a tap": self.name == "live" and vars(self.publisher.session).get("send"),
            "a state of running": self.il.running,
        }
        if self.name.startswith("torch"):
            self.torch.cuda.reset_peak_memory_stats()  # until then a wrapper may keep a peak for the user
            now = {name: getattr(self.torch._C, name) for name in self.stock}
            found["wrappers"] = [name for name in now if now[name] is not self.stock[name]]
        callbacks = {event: list(now) for event, now in self.shell.events.callbacks.items()}
        found["callbacks"] = callbacks != self.stock_callbacks and callbacks
        self.before = self.surroundings()  # it is blamed once
        return [f"left: {what}: {it!r}" for what, it in found.items() if it]


class Blocks:
    """What is measured without a shell: blocks, calls, lines, epochs. An interrupt in them is the user's."""

    def __init__(self, _):
        from memory import Block, blip

        from ipygpulogger import measure, measure_lines, watch_epochs
        from ipygpulogger.compat.gpu_mem_trace import GPUMemTrace
        from ipygpulogger.engine import machine

        self.machine = machine.machine()
        self.kept = []

        def work():
            blip(12)
            self.kept.append(Block(4))

        def in_epochs():
            self.epochs = watch_epochs(range(2), report=False)
            for _ in self.epochs:
                work()

        def in_blocks():
            with self.measure, GPUMemTrace(silent=True), measure():
                work()

        self.measure = measure("block", report=True)
        self.call, self.lines = measure(work), measure_lines(report=True)(work)
        self.doings = in_blocks, self.call, self.lines, in_epochs
        self.go(lambda _: contextlib.nullcontext())
        gc.collect()
        gc.freeze()

    def go(self, phase):
        from ipygpulogger import measure

        with phase("blocks"):
            for doing in self.doings:
                with contextlib.suppress(KeyboardInterrupt):
                    doing()
        self.kept.clear()
        self.measure = measure("block", report=True)  # an end that was never begun comes when its object goes
        problems = []
        for doing in self.doings:
            doing()
            self.kept.clear()
        problems += wrong("the next block", self.measure.gen, 4, 8)
        problems += wrong("the next epoch", self.epochs.history[0].gen, 4, 8)
        lines = [(line.hits, round(line.gen.peaked_bytes / MB / 4)) for line in self.lines.lines]
        if lines != [(1, 3), (1, 0)]:
            problems.append(f"the next lines: {self.lines.lines}")
        gc.collect()  # the interrupt's traceback and its frames refer to each other, and to a block never left
        self.machine.close()  # what a logger's end does
        return problems + [f"left: {what}: {it!r}" for what, it in left_anywhere(self.machine).items() if it]


THRESHOLD = gc.get_threshold()


def is_open(pynvml):
    """Whether the driver's library is; pynvml's own count of it may be wrong after an interrupt."""
    try:
        return bool(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError_Uninitialized:
        return False


def left_anywhere(machine):
    """What of us nobody may find in a process where nobody measures."""
    import pynvml

    return {
        "threads": on_their_way_out(),  # first: they close what they use
        "a trace function": sys.gettrace(),
        "a trace function for threads": threading.gettrace(),
        "monitoring tools": tools(),
        "scopes": set(machine.scopes),
        "holders": machine.scopes.loggers,
        "someone who wants the sampler": bool(machine.sampler._wanted),
        "NVML": is_open(pynvml),
        "the collector": gc.get_threshold() != THRESHOLD or not gc.isenabled(),
    }


def until_done(step):
    """As a user does it: again, should an interrupt have come."""
    try:
        step()
    except KeyboardInterrupt:
        step()


def wrong(what, usage, consumed_mb, peaked_mb):
    found = usage.consumed_bytes / MB, usage.peaked_bytes / MB
    near = abs(found[0] - consumed_mb) <= 2 and abs(found[1] - peaked_mb) <= 2
    return [] if near and usage.peak.quality == "exact" else [f"{what}: {found}, {usage.peak}"]


def tools():
    """Who has an id of sys.monitoring."""
    monitoring = getattr(sys, "monitoring", None)
    return [] if monitoring is None else [name for name in map(monitoring.get_tool, TOOLS) if name]


def on_their_way_out():
    """Wait for our threads that were told to end, one of which may be in the driver; which do not.

    `Thread.join` does not do: of a thread for whose end somebody waited in vain, because an interrupt came,
    Python 3.11 believes that it has ended.
    """
    until_s = time.monotonic() + HANGS_S / 2
    while left := [one.name for one in threading.enumerate() if one.name.startswith("ipygpulogger")]:
        if time.monotonic() > until_s:
            break
        time.sleep(0.01)
    return left


# -- how it is run --------------------------------------------------------------------------------------


def scenario_of(name):
    """Of cells, of blocks, of estimates, of recordings of general RAM."""
    if name == "estimate":
        from untouched import Estimating

        return Estimating(name)
    if name == "ram":
        from ram_recordings import RamRecordings

        return RamRecordings(name)
    return (Blocks if name == "blocks" else Session)(name)


def walk(name, count, seed, only=""):
    """One run for each point that the scenario reaches, or for so many of them, evenly; what went wrong."""
    aim = Struck.install()
    session = scenario_of(name)
    problems = session.go(aim.at)
    if problems:
        return len(aim.reached), ["without an interrupt:", *problems]
    points = [point for point in aim.reached if only in aim.places[point[1]]]
    step = max(1, len(points) // count) if count else 1
    chosen = points[seed % step :: step]
    struck = 0
    for point in chosen:
        if count == 0 and struck % 100 == 99:
            sys.__stderr__.write(f"{struck} of {len(chosen)}, {len(problems)} problems: {problems[:9]}\n")
        aim.target, aim.struck = point, False
        faulthandler.dump_traceback_later(HANGS_S, exit=True, file=sys.__stderr__)
        found = session.go(aim.at)
        aim.target = None  # what is loaded or noted once is not reached again
        struck += aim.struck
        problems += [f"{point[0]}, {aim.places[point[1]]}: {one}" for one in found]
    return struck, problems


class Sender:
    """Sends this process a signal at a random moment of what runs within `at` the chosen phase."""

    def __init__(self, seed):
        self._random, self._lasts_s, self._chosen = random.Random(seed), {}, None
        self._armed = False
        self.ours = 0  # signals that struck while the package ran
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, _, frame):
        if self._armed:
            self._armed = False
            while frame is not None and "ipygpulogger" not in Path(frame.f_code.co_filename).parts:
                frame = frame.f_back
            self.ours += frame is not None
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def learn(self, phase):
        """How long it lasts."""
        began_s = time.perf_counter()
        yield
        self._lasts_s[phase] = time.perf_counter() - began_s

    def choose(self):
        """The phase that is struck next: mostly the longest."""
        self._chosen = self._random.choices(list(self._lasts_s), list(self._lasts_s.values()))[0]
        return self._chosen

    @contextlib.contextmanager
    def at(self, phase):
        """What runs within may be struck."""
        if phase != self._chosen:
            yield
            return
        sender = threading.Thread(
            target=self._send, args=[self._random.random() * self._lasts_s[phase] * 1.1]
        )
        sender.start()
        try:
            self._armed = True
            yield
        except KeyboardInterrupt:
            pass  # between the steps of the scenario
        finally:
            self._armed = False
            sender.join()

    def _send(self, delay_s):
        time.sleep(delay_s)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def signals(name, count, seed):
    """So many real signals at random moments; what went wrong."""
    sender = Sender(seed)
    session = scenario_of(name)
    problems = session.go(sender.learn)
    for number in range(count):
        chosen = sender.choose()
        faulthandler.dump_traceback_later(HANGS_S, exit=True, file=sys.__stderr__)
        problems += [f"signal {number} in {chosen}: {one}" for one in session.go(sender.at)]
    return sender.ours, problems


def strike(env, how, scenario, count):
    """Strike one scenario so often, in a process of its own."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent), str(here)])
    done = subprocess.run(
        [sys.executable, here / "interrupt_injection.py", how, scenario, str(count), "7"],
        env={**env, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    print(done.stdout)
    return int(done.stdout.partition(" ")[0])


def main(how, name, count, seed="0", *only):
    sys.unraisablehook = lambda *_: None  # an interrupt in a finalizer is only told
    stdout, sys.stdout = sys.stdout, io.StringIO()
    stderr, sys.stderr = sys.stderr, io.StringIO()
    try:
        done, problems = {"walk": walk, "signals": signals}[how](name, int(count), int(seed), *only)
    except BaseException:
        stderr.write(sys.stderr.getvalue()[-4000:])
        sys.stderr = stderr
        raise
    print(
        f"{done} struck in ours, {len(problems)} problems", *problems[:60], sep="\n", file=stdout, flush=True
    )
    os._exit(bool(problems))


if __name__ == "__main__":
    main(*sys.argv[1:])
