"""Every call by which the package leaves the process, every error it can return, at every moment of a cell's life.

The calls are found, not listed: the package is compiled anew (as in interrupt_injection.py) so that each call in it
asks here first. One run without a fault notes which of the functions called are not the package's and leave the
process, and what they return; each of those calls then fails in each way, in a session of its own. The user's cell
must be as it is without us, each figure right or labelled or told to be missing, and the next cell exact.

As a program: ``fault_matrix.py SCENARIO,... [all|STEP [FIND]]``: each, or each STEP-th, that has FIND in its name;
STEP 0: one error for each call and moment.
"""

import ast
import asyncio
import builtins
import collections
import contextlib
import ctypes
import errno
import faulthandler
import functools
import gc
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import types
import zlib
from functools import partial

from interrupt_injection import MB, Points, Struck, left_anywhere

# -- which calls leave the process ----------------------------------------------------------------------

KINDS = {  # by the module that a function is of
    **dict.fromkeys(
        ["posix", "os", "io", "_io", "pathlib", "tempfile", "shutil", "posixpath", "signal"], "os"
    ),
    **dict.fromkeys(["resource", "mmap", "fcntl", "select", "_signal", "platform", "socket"], "os"),
    **dict.fromkeys(["subprocess", "multiprocessing", "_posixsubprocess"], "program"),
    **{name: name for name in ("pynvml", "torch", "psutil", "memray")},
}
WITHIN = re.compile(  # the process: what those modules have besides
    r".*\b(getpid|fs(path|encode|decode)|register_at_fork|getsignal|strerror|urandom|getrusage|join|basename)"
    r"|PurePath\b.*|PosixPath|Mapping\..*|Path\.(__.*|cwd)|(String|Bytes)IO\b.*"
)
STANDARD = sys.stdlib_module_names - {"ctypes"}  # a Python may be without that one
SHOWS = {"print", "publish", "display", "clear_output", "write", "flush", "send"}
NO_CALL = (BaseException, tuple, ctypes.Array.__base__)  # the last: all data of C
BOUND = {"pybind11_type"}  # of classes of C++, whose objects cannot be None


def kind_of(function):
    """What a callable asks: a library, the system, the front end; None if nothing outside the process."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, ctypes._CFuncPtr):
        return "cuda" if function.__name__.startswith("cu") else "libc"
    if isinstance(function, type) and (issubclass(function, NO_CALL) or type(function).__name__ in BOUND):
        return None
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    is_method = owner is not None and not isinstance(owner, (type, types.ModuleType))
    module = type(owner).__module__ if is_method else getattr(owner, "__name__", None)
    module = module or getattr(function, "__module__", None) or ""
    known = {outside_import: "import", print: "display", open: "os", os.fdopen: "os", ctypes.PyDLL: "os"}
    if function.__hash__ and function in known:
        return known[function]
    if is_method and name in SHOWS and not module.startswith(("ipygpulogger", "_io")):
        return "display"
    if name == "start_new_thread" or (name == "start" and isinstance(owner, threading.Thread)):
        return "thread"
    return kind_by_name(module, getattr(function, "__qualname__", name))


@functools.lru_cache(4096)
def kind_by_name(module, qualified):
    return (
        "os"
        if qualified == "dlopen"
        else not WITHIN.fullmatch(qualified) and KINDS.get(module.partition(".")[0])
    )


class Asks(Points):
    """Puts `__ask__(number, function)` in the place of each function that is called; imports are calls, too."""

    def _asked(self, node, function):
        number = self._number(node, ast.unparse(function)[:50])
        return ast.Call(ast.Name("__ask__", ast.Load()), [number, function], [])

    def visit_Call(self, node):
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if self._depth and name not in ("super", "locals", "globals", "vars", "dir"):
            if name in ("map", "filter") and isinstance(node.args[0], ast.Attribute):
                node.args[0] = self._asked(node, node.args[0])
            node.func = self._asked(node, node.func)
        return node

    def _block(self, statements):
        found = []
        for one in statements:
            names = [alias.name for alias in one.names] if isinstance(one, ast.Import) else []
            names += [one.module] if isinstance(one, ast.ImportFrom) and not one.level else []
            for name in names if self._depth else ():
                if name.partition(".")[0] in STANDARD:
                    continue
                function = self._asked(one, ast.Name("__outside_import__", ast.Load()))
                found.append(ast.copy_location(ast.Expr(ast.Call(function, [ast.Constant(name)], [])), one))
            found.append(self.visit(one))
        return found


class Asking(Struck):
    """Imports the package so that it asks."""

    points = Asks


def outside_import(_name):
    """Stands before each import of a library in a function, to fail in its place."""


def subject_of(function, args):
    """Which file a call is about, without the numbers in its name."""
    while isinstance(function, partial):
        function, args = function.func, (*function.args, *args)
    first = args[0] if args else getattr(function, "__self__", None)
    if type(first) is int and isinstance(function, ctypes._CFuncPtr):
        with contextlib.suppress(OSError):
            first = pathlib.Path(f"/proc/self/fd/{first}").readlink()
    if isinstance(first, bytes):
        first = first.decode("latin-1")
    text = str(first) if isinstance(first, (str, pathlib.PurePath)) else ""
    return re.sub(r"self|\d+", "#", re.sub(".*(tmp|site-packages/.*/)", "", text))[-60:].partition("\n")[0]


# -- how they fail --------------------------------------------------------------------------------------

ERRNOS = ["ENOENT", "EACCES", "EIO", "EINTR", "EMFILE", "ENOSPC", "ESRCH", "ENOMEM"]
PASS = ("EMFILE", "ENOMEM")  # what lacks then may be there again later
CUDA_CODES = [1, 2, 3, 100, 801, 999]
AT_THE_END = ("close", "rm_watch", "Shutdown", "unlink")  # has ended, whatever it then says
OF_SYSTEM = [partial(OSError, getattr(errno, name), name) for name in ERRNOS]
FULL, BROKEN, NO_MEMORY = OF_SYSTEM[5], partial(RuntimeError, "broken"), MemoryError
RAISED = {  # by the kind of call
    "os": OF_SYSTEM,
    "program": [*OF_SYSTEM, partial(subprocess.SubprocessError, "broken")],
    "import": [*OF_SYSTEM, partial(ImportError, "gone"), BROKEN],
    "thread": [partial(RuntimeError, "can't start new thread"), NO_MEMORY],
    "torch": [BROKEN, partial(AttributeError, "broken"), NO_MEMORY, FULL],
    "memray": [BROKEN, partial(AttributeError, "broken"), NO_MEMORY, FULL],
    "display": [
        *(FULL, BROKEN, OF_SYSTEM[2], partial(BrokenPipeError, 32, "EPIPE"), partial(ValueError, "closed")),
        partial(UnicodeEncodeError, "ascii", "é", 0, 1, "cannot"),
    ],
}


def end(function, args, kwargs):
    """Make a call that ends something, which it does although it fails."""
    if getattr(function, "__name__", "").endswith(AT_THE_END):
        function(*args, **kwargs)


def raising(make):
    def fail(function, *args, **kwargs):
        end(function, args, kwargs)
        raise make()

    return fail


def c_fails(number):
    def fail(function, *args, **kwargs):
        end(function, args, kwargs)
        ctypes.set_errno(number)
        return -1

    return fail


def returning(change):
    return lambda function, *args, **kwargs: change(function(*args, **kwargs))


def rewriting(name):
    """Put other content into the buffer of C's `read`."""

    def read(function, number, buffer, most):
        count = function(number, buffer, most)
        text = texts(bytes(buffer[:count]))[name] if count > 0 else b""
        buffer[: len(text)] = text
        return len(text) if count > 0 else count

    return read


def texts(found):
    """What a file may hold that nobody expects."""
    said = found if type(found) is str else found.decode("latin-1")
    changed = {"empty": "", "half": said[: len(said) // 2], "garbage": "\xff\x00 nothing: of\nthis\n"}
    for name, number in (("huge", "9" * 25), ("negative", "-7"), ("words", "max")):
        changed[name] = re.sub(r"\d+", number, said)
    return {name: text if type(found) is str else text.encode("latin-1") for name, text in changed.items()}


def errors_of(kind, returned):
    """By name: what takes the place of a call that returned these values."""
    makes = RAISED.get(kind, [])
    if kind == "pynvml":
        import pynvml

        codes = {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
        makes = [partial(TypeError, "broken"), *(partial(pynvml.NVMLError, code) for code in sorted(codes))]
    if kind == "psutil":
        import psutil

        kinds = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess)
        makes = [OF_SYSTEM[4], *(partial(kind, 1) for kind in kinds)]
    found = {repr(make()): raising(make) for make in makes}
    text = next((one for one in returned if type(one) in (str, bytes)), "")
    if kind == "libc":
        found |= {name: c_fails(getattr(errno, name)) for name in ERRNOS}
        found |= {name: rewriting(name) for name in texts(text)} if text else {}
    if kind == "cuda":
        found |= {f"code {code}": returning(lambda _, code=code: code) for code in CUDA_CODES}
    if kind in ("os", "program", "pynvml", "psutil", "torch", "memray"):

        def changed(name):
            return returning(lambda one: texts(one)[name] if type(one) in (str, bytes) else one)

        found |= {name: changed(name) for name in texts(text)} if text else {}
        if any(type(one) in (list, tuple, dict) for one in returned):
            found["nothing in it"] = returning(
                lambda one: type(one)() if type(one) in (list, tuple, dict) else one
            )
        if kind not in ("os", "program") and any(one is not None for one in returned):
            found["None"] = returning(lambda _: None)
    return found


class Faults:
    """Which call fails, in which moment and how; while it learns, which calls there are."""

    def __init__(self):
        self.places, self.moment, self.learns = [], "", False
        self.target, self.error, self.fault, self.struck = None, "", None, 0
        self.found = {}  # by place, moment, kind and subject: a value of each type that was returned

    def at(self, moment):
        """What comes now is of this moment."""
        self.moment = moment

    def named(self, here):
        """A call in words."""
        return f"{self.places[here[0]]} {here[3]} {here[1]}"

    def ask(self, number, function):
        """Take the place of a function for one call."""
        if not self.moment:
            return function
        aimed = self.target is not None and self.target[:2] == (number, self.moment)
        if not (aimed or self.learns) or not (kind := kind_of(function)):
            return function
        return partial(self._strike if aimed else self._learn, number, kind, function)

    def _strike(self, number, kind, function, *args, **kwargs):
        if self.target != (number, self.moment, kind, subject_of(function, args)):
            return function(*args, **kwargs)
        self.struck += 1
        return self.fault(function, *args, **kwargs)

    def _learn(self, number, kind, function, *args, **kwargs):
        here = number, self.moment, kind, subject_of(function, args)
        found = self.found.setdefault(here, [])
        returned = function(*args, **kwargs)
        if kind == "libc" and function.__name__ == "read" and returned > 0:
            returned = bytes(args[1][:returned])
        if type(returned) not in map(type, found):
            found.append(returned if type(returned) in (str, bytes, list, tuple, dict, type(None)) else ...)
        return returned if type(returned) is not bytes or kind != "libc" else len(returned)


# -- a session with one fault in it ---------------------------------------------------------------------

CELL = "print('mine')\nat('within')\nkept = Block(3)\nblip(5)\n{more}at('after')\n6 * 7\n"
ON_GPU = (
    "held = torch.empty(32 << 20, dtype=torch.uint8, device='cuda')\n"
    "_t = torch.empty(64 << 20, dtype=torch.uint8, device='cuda'); del _t\n"
)
SCENARIOS = {  # the rest of the cell, the logger's options
    "plain": ("", {"log": True, "gc_collect": "full"}),
    "quiet": ("", {"report": "none", "gc_collect": False, "reset_peaks": False}),
    "live": ("looked()\n", {"report": "rich"}),
    "gpu": ("looked()\n", {"devices": "all", "metrics": ("energy", "utilization")}),
    "lines": ("", {"lines": True}),
    "children": ("child = Child(20)\nlooked()\nchild.end()\n", {}),
    "ram": ("", {"peak": "all"}),
    "blocks": ("blocks()\n", {}),
    "commands": ("commands()\n", {}),
    "torch": (ON_GPU, {"log": True}),
    "torch live": (ON_GPU + "looked()\n", {"report": "rich", "metrics": ("energy",)}),
    "torch peak": (ON_GPU, {"peak": True}),
}


def at(moment):
    """What a cell calls; through it nobody who walks over the user's objects finds ours."""
    builtins.__ask__.__self__.at(moment)


class Child:
    """A child that holds so many MB until `end`."""

    def __init__(self, size_mb):
        (read, self._write), (told, tell) = os.pipe(), os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _held = self.block(size_mb)
            os.write(tell, b"1")
            os.close(self._write)
            os.read(read, 1)
            os._exit(0)
        os.read(told, 1)
        for one in (read, told, tell):
            os.close(one)

    def end(self):
        os.close(self._write)
        os.waitpid(self._pid, 0)


class OwnError(Exception):
    """The user's."""


def blocks():
    """What a user measures without the logger: results and errors are the user's."""
    from ipygpulogger import measure, measure_lines
    from ipygpulogger.compat.gpu_mem_trace import gpu_mem_trace

    def own(x):
        if x is None:
            raise OwnError
        return x

    async def later(x):
        return own(x)

    def steps(x):
        yield own(x)

    for decorate in (measure, gpu_mem_trace, measure_lines(report=False)):
        call, wait, go = map(decorate, (own, later, steps))
        for run in (call, lambda x, wait=wait: asyncio.run(wait(x)), lambda x, go=go: next(iter(go(x)))):
            assert run(42) == 42
            with contextlib.suppress(OwnError):
                run(None)
                raise AssertionError("it went on")


def commands():
    """Each is done, or refused in one sentence."""
    from IPython import get_ipython
    from IPython.core.error import UsageError

    for command in (
        "status",
        "doctor",
        "summary",
        "vars",
        "free",
        "fit",
        "plot",
        "save log.csv",
        "load log.csv",
    ):
        # A command that cannot print says so as any `print` does.
        target = builtins.__ask__.__self__.target
        refused = Exception if target and target[2] == "display" else UsageError
        with contextlib.suppress(refused):
            get_ipython().run_line_magic("gpulog", command)


class Session:
    """A shell, and the cells of a logger in it."""

    def __init__(self, faults):
        from IPython.core.interactiveshell import InteractiveShell
        from memory import Block, blip
        from places import Publisher
        from traitlets.config import Config

        from ipygpulogger.engine import machine, sampler
        from ipygpulogger.notebook import live, logger

        self.faults, self.machines, self.logger, self.live = faults, machine, logger, live
        self.shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
        self.log = pathlib.Path(tempfile.mkdtemp()) / "log.jsonl"
        self.looked, self.died, Child.block = threading.Event(), [], Block
        waits = partial(self.looked.wait, 0.05)
        self.shell.user_ns.update(Block=Block, blip=blip, Child=Child, at=at, looked=waits)
        self.shell.user_ns.update(blocks=blocks, commands=commands)
        os.chdir(self.log.parent)
        live.AFTER_S, live.EVERY_S = 0.0, 0.001
        Publisher.is_publishing = False  # as IPython 9 asks
        self.publishers, self.displays = (self.shell.display_pub, Publisher()), logger.display_for
        self.samplers = sampler.Sampler, partial(sampler.Sampler, delay_s=0.0, period_s=0.001)
        look = machine.Machine.sample

        def sample(one):
            try:
                look(one)
            finally:
                self.looked.set()

        machine.Machine.sample = sample
        for module in ("memory", "places", "interrupt_injection"):
            sys.modules.pop(module, None)  # or each cell would walk over them, as over a user's modules
        threading.excepthook = lambda args: self.died.append(f"thread: {args.exc_value!r}")
        sys.unraisablehook = lambda args: self.died.append(f"finalizer: {args.exc_value!r} {args.object}")

    def begin(self, name):
        """Be of one scenario from now on; the calls in it are found."""
        more, self.options = SCENARIOS[name]
        self.name, self.cell = name, CELL.format(more=more)
        rich = self.options.get("report") == "rich"
        publisher = self.shell.display_pub = self.publishers[rich]
        displays = (self.displays, lambda *_: self.live.LiveDisplay(publisher))
        self.logger.display_for, self.machines.Sampler = displays[rich], self.samplers["looked" in more]
        if name.startswith("torch"):
            import torch

            self.shell.user_ns["torch"] = torch
            torch.cuda.synchronize()
        if "peak" in self.options:  # a recording of torch that cannot be made is one of RAM
            import memray  # whose unwinder keeps a pipe from the first recording on

            with memray.Tracker(destination=memray.FileDestination("/dev/null", overwrite=True)):
                bytearray(1 << 20)
        self.go()
        self.go()  # what is loaded once is
        self.faults.found, self.faults.learns = {}, True
        problems = self.go()
        self.faults.learns = False
        gc.collect()
        gc.freeze()
        return problems

    def run(self, code):
        """Run a cell; its result, and what was printed."""
        out, err = io.StringIO(), io.StringIO()
        self.looked.clear()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            result = self.shell.run_cell(code, store_history=True)
        self.faults.at("")
        self.said.write(out.getvalue() + err.getvalue())
        return result, out.getvalue()

    def forget(self):
        for name in ("kept", "held", "_t", "child"):
            self.shell.user_ns.pop(name, None)
        self.shell.last_execution_result = None
        gc.collect()

    def fresh(self):
        """As in a new process: nothing is known, cached or said yet."""
        self.machines._machine = None
        for name, module in list(sys.modules.items()):
            if name.startswith("ipygpulogger"):
                for found in vars(module).values():
                    if isinstance(found, functools._lru_cache_wrapper):
                        found.cache_clear()

    def go(self):
        """The whole life of a logger; what is wrong."""
        self.fresh()
        self.died.clear()
        self.log.unlink(missing_ok=True)
        self.said, self.il, target = io.StringIO(), None, self.faults.target
        before = descriptors_now(), gc.isenabled(), gc.get_threshold()
        problems = self.called("start", self.start)
        if self.il is None or not self.il.running:  # what the user asks for may fail, with a sentence
            self.faults.target = None
            problems += self.called("start", self.start)
        self.run("first = 1")
        problems += self.cell_with("before")
        if target and target[1] != "stop":
            self.faults.target = None
        problems += [f"next: {one}" for one in self.cell_with("next")]
        # What says that this is no Linux, or refuses the reset for good, is believed.
        for_good = target and target[1] == "start" and "/status" in target[3]
        for_good = for_good or (target and "clear_refs" in target[3] and self.faults.error not in PASS)
        gen = self.il.record and self.il.record.gen
        if (
            self.options.get("reset_peaks", True)
            and not for_good
            and (not gen or gen.peak.quality != "exact")
        ):
            problems.append(f"next: {gen}")
        problems += self.called("stop", self.il.stop)
        self.faults.target = None
        self.il.stop()
        if "log" in self.options and "cannot write" not in self.said.getvalue():
            from ipygpulogger import History

            records = len(History.load(self.log))
            problems += [] if records == len(self.il.history) else [f"{records} records in the log"]
        after = descriptors_now(), gc.isenabled(), gc.get_threshold()
        problems += [] if before == after else [f"left: {before} became {after}"]
        left = left_anywhere(self.machines.machine())
        return problems + [f"left: {name}: {one}" for name, one in left.items() if one] + self.died

    def start(self):
        from ipygpulogger import IPyGPULogger

        options = {"report": "text", **self.options} | ({"log": self.log} if "log" in self.options else {})
        self.il = self.il or IPyGPULogger(**options)
        self.il.start()

    def called(self, moment, call):
        """Call what the user calls; an error that says nothing is a problem."""
        with contextlib.redirect_stdout(self.said), contextlib.redirect_stderr(self.said):
            self.faults.at(moment)
            try:
                call()
            except Exception as error:
                self.said.write(f"ipygpulogger: {error}")
                silent = not str(error) and type(error) is not MemoryError
                return (
                    [f"{moment}: {error!r}"] if silent or moment == "stop" or not self.faults.struck else []
                )
            finally:
                self.faults.at("")
        return []

    def cell_with(self, moment):
        """Run the cell; what is wrong with it and its record, if nothing is said of that."""
        count, start = len(self.il.history), 0 if moment == "before" else self.said.tell()
        self.faults.at(moment)
        result, out = self.run(self.cell)
        said, problems = self.said.getvalue()[start:], []
        if not result.success or result.result != 42 or not out.startswith("mine\n"):
            problems.append(f"the user's cell: {result.error_before_exec or result.error_in_exec} {out!r}")
        if "Traceback" in said or "Error in callback" in said:
            problems.append(f"shown: {said[-300:]!r}")
        self.forget()
        record = self.il.record if len(self.il.history) == count + 1 else None
        told = "ipygpulogger" in said.replace("ipygpulogger started.", "") or (record and record.notes)
        if record is None or record.gen is None:
            return problems + ([] if told else ["no figure and no word"])
        if self.options.get("report", "text") == "text" and "RAM:" not in out and not told:
            problems.append("no report and no word")
        problems += usage("RAM", record.gen, 3, 8)
        out_for_good = any("left out" in str(note) for one in self.il.history for note in one.notes)
        if self.name.startswith("torch") and not (told or out_for_good):
            problems += usage("GPU", record.gpus[0], 32, 96) if record.gpus else ["no device and no word"]
        if self.name == "children" and record.children:
            problems += figure("children", record.children, 20, 6)
        elif self.name == "children" and not told:
            problems.append("no children and no word")
        return problems


def usage(what, found, consumed_mb, needed_mb, near_mb=1.2):
    """What is wrong with the figures of a memory."""
    near = abs(found.consumed_bytes / MB - consumed_mb) <= near_mb
    wrong = [] if near else [f"{what} consumed: {found.consumed_bytes / MB}"]
    return wrong + figure(f"{what} needed", found, needed_mb, near_mb)


def figure(what, found, truth_mb, near_mb):
    """Whether the truth is where a peak says it is."""
    peak, before_bytes = found.peak, found.before_bytes
    lo, hi = (one is not None and (one - before_bytes) / MB for one in (peak.lo_bytes, peak.hi_bytes))
    below = lo < truth_mb - near_mb if peak.quality == "exact" else hi and hi < truth_mb - near_mb
    return [f"{what}: {peak.quality}, {lo} to {hi}"] if lo > truth_mb + near_mb or below else []


FIGURE = re.compile(r"(next: )?(RAM|GPU|children).*: ")  # what `usage` and `figure` find


def descriptors_now():
    """What is open, but for memray's own files, which it keeps until its tracker is collected."""
    found = {}
    for one in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing itself
            found[one.name] = os.readlink(one)  # noqa: PTH115 - a text
    return {f"{name} {path}" for name, path in found.items() if not path.endswith((" (deleted)", "/status"))}


def sample(combinations, seen):
    """One error for each call and moment that no earlier scenario had, always the same."""
    by_call = {}
    for one in combinations:
        by_call.setdefault(one[0], []).append(one)
    new = [here for here in by_call if here not in seen]
    seen.update(new)
    return [by_call[here][zlib.crc32(repr(here[1:]).encode()) % len(by_call[here])] for here in new]


def main(names, which="all", find=""):
    """Run all combinations of these scenarios that have `find` in their name, each 7th, or a sample."""
    faults = Asking.aim = Faults()
    builtins.__ask__, builtins.__outside_import__ = faults.ask, outside_import
    sys.meta_path.insert(0, Asking)
    session, counted, seen = Session(faults), collections.Counter(), set()

    def say(*found, counts="problems"):
        """Print at once: a run takes an hour, and may be cut short."""
        print(*found, sep="\n", end="\n" * bool(found), file=sys.__stdout__, flush=True)
        counted[counts] += len(found)

    def tried(target):
        faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
        faults.target, faults.struck = target, 0
        try:
            return session.go()
        except BaseException as raised:
            return [f"escaped: {raised!r}"]

    for name in names.split(","):
        say(*(f"{name}, without a fault: {one}" for one in session.begin(name)))
        combinations = [
            (here, error, fault)
            for here, returned in sorted(faults.found.items(), key=lambda found: found[0])
            for error, fault in errors_of(here[2], returned).items()
            if find in f"{faults.named(here)} {error}"
        ]
        step = 1 if which == "all" else int(which)
        chosen = combinations[::step] if step else sample(combinations, seen)
        calls = len({here[0] for here in faults.found})
        counted.update({"calls": calls, "moments": len(faults.found), "combinations": len(combinations)})
        for target, faults.error, faults.fault in chosen:
            found = tried(target)
            counted.update({"run": 1, "struck": bool(faults.struck)})
            # Of thousands of sessions on a busy machine, some figures have memory of another thread in them.
            once = found and all(FIGURE.match(one) for one in found) and not tried(target)
            combination = f"{name}: {faults.named(target)} {faults.error}"
            say(*(f"{combination}: {one}"[:300] for one in found), counts="only once" if once else "problems")
    print(json.dumps(counted), file=sys.__stdout__, flush=True)
    os._exit(bool(counted["problems"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
