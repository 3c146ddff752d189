"""Every call by which the package leaves the process, every error it can return, at every moment of a cell's life.

The calls are found, not listed: the package is compiled anew (as in interrupt_injection.py) so that each call in it
asks here first. One run without a fault notes which of the functions called are not the package's and leave the
process, and what they return; each of those calls then fails in each way, in a session of its own. The user's cell
must be as it is without us, each figure right or labelled or told to be missing, and the next cell exact.

As a program: ``fault_matrix.py SCENARIO,... [MOST [FIND]]``: so many of each, of those that have FIND in the name.
"""

import ast
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

from interrupt_injection import MB, Points, Struck, left_anywhere

# -- which calls leave the process ----------------------------------------------------------------------

KINDS = {  # by the module that a function is of
    **dict.fromkeys(
        ["posix", "os", "io", "_io", "pathlib", "tempfile", "shutil", "posixpath", "genericpath"], "os"
    ),
    **dict.fromkeys(["resource", "mmap", "fcntl", "select", "signal", "_signal", "platform", "socket"], "os"),
    **dict.fromkeys(["subprocess", "multiprocessing", "_posixsubprocess"], "program"),
    **{name: name for name in ("pynvml", "torch", "psutil", "memray")},
}
NEVER_FAIL = {
    "getpid",
    "fspath",
    "fsencode",
    "fsdecode",
    "register_at_fork",
    "getsignal",
    "strerror",
    "urandom",
}
PURE = (
    "PurePath.",
    "PosixPath",
    "Path.__",
    "WindowsPath",
    "Path.cwd",
    "StringIO",
    "BytesIO",
    "join",
    "basename",
)
STANDARD = sys.stdlib_module_names - {"ctypes"}  # a Python may be without that one
SHOWS = {"print", "publish", "display", "clear_output", "write", "flush", "send"}


@functools.lru_cache(4096)
def kind_by_name(module, qualified):
    """What such a function asks; None if nothing outside the process."""
    name = qualified.rpartition(".")[2]
    if name in NEVER_FAIL or qualified.startswith(PURE):
        return None
    return KINDS.get(module.partition(".")[0])


def kind_of(function):
    """What a callable asks: a library, the system, the front end; None if nothing outside the process."""
    while isinstance(function, functools.partial):
        function = function.func
    if function is outside_import:
        return "import"
    if isinstance(function, ctypes._CFuncPtr):
        return "cuda" if function.__name__.startswith("cu") else "libc"
    if isinstance(function, type) and issubclass(function, (BaseException, tuple, ctypes._SimpleCData)):
        return None
    name = getattr(function, "__name__", "")
    if function in (open, print, os.fdopen):
        return "display" if function is print else "os"
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or ""
    if isinstance(owner, types.ModuleType):
        module = owner.__name__
    elif owner is not None and not isinstance(owner, type):
        module = type(owner).__module__
        if name in SHOWS and not module.startswith("ipygpulogger"):
            return "display"
        if isinstance(owner, threading.Thread):
            return "thread" if name == "start" else None
    if name in ("start_new_thread", "start_new"):
        return "thread"
    if module.startswith("ctypes") and name in ("CDLL", "PyDLL", "dlopen"):
        return "os"
    return kind_by_name(module, getattr(function, "__qualname__", name))


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


# -- how they fail --------------------------------------------------------------------------------------

ERRNOS = ["ENOENT", "EACCES", "EIO", "EINTR", "EMFILE", "ENOSPC", "ESRCH", "ENOMEM"]
CUDA_CODES = [1, 2, 3, 100, 801, 999]
AT_THE_END = ("close", "rm_watch", "Shutdown", "unlink", "release")  # has ended, whatever it then says


def raising(error):
    def fail(function, *args, **kwargs):
        if getattr(function, "__name__", "").endswith(AT_THE_END):
            function(*args, **kwargs)
        raise error() if callable(error) else error

    return fail


def returning(change):
    return lambda function, *args, **kwargs: change(function(*args, **kwargs))


def subject_of(function, args):
    """Which file a call is about, without the numbers in its name."""
    while isinstance(function, functools.partial):
        function, args = function.func, (*function.args, *args)
    first = args[0] if args else getattr(function, "__self__", None)
    if type(first) is int and isinstance(function, ctypes._CFuncPtr):
        with contextlib.suppress(OSError):
            first = pathlib.Path(f"/proc/self/fd/{first}").readlink()
    if isinstance(first, bytes):
        first = first.decode("latin-1")
    text = str(first) if isinstance(first, (str, pathlib.PurePath)) else ""
    return re.sub(r"self|\d+", "#", re.sub(".*(tmp|site-packages/.*/)", "", text))[-60:].partition("\n")[0]


def rewriting(name):
    """Put other content into the buffer of a read."""

    def read(function, number, buffer, most):
        count = function(number, buffer, most)
        if count > 0:
            text = texts(bytes(buffer[:count]))[name]
            buffer[: len(text)] = text
            count = len(text)
        return count

    return read


def c_fails(number):
    def fail(function, *args, **kwargs):
        if function.__name__.endswith(AT_THE_END):
            function(*args, **kwargs)
        ctypes.set_errno(number)
        return -1

    return fail


def os_errors(*names):
    return {name: raising(functools.partial(OSError, getattr(errno, name), name)) for name in names}


def texts(found):
    """What a file may hold that nobody expects."""
    kind = type(found)
    said = found if kind is str else found.decode("latin-1")
    changed = {"empty": "", "half": said[: len(said) // 2], "garbage": "\xff\x00 nothing: of\nthis\n"}
    for name, number in (("huge", "9" * 25), ("negative", "-7"), ("words", "max")):
        changed[name] = re.sub(r"\d+", number, said)
    return {name: text if kind is str else text.encode("latin-1") for name, text in changed.items()}


def errors_of(kind, returned):
    """By name: what takes a call's place."""
    found = {}
    if kind in ("os", "import", "program"):
        found |= os_errors(*ERRNOS)
    if kind == "import":
        found |= {"ImportError": raising(ImportError("gone"))} | {
            "RuntimeError": raising(RuntimeError("broken"))
        }
    if kind == "program":
        found["SubprocessError"] = raising(subprocess.SubprocessError("broken"))
    if kind == "thread":
        found |= {
            "RuntimeError": raising(RuntimeError("can't start new thread")),
            "MemoryError": raising(MemoryError),
        }
    if kind == "libc":
        found |= {name: c_fails(getattr(errno, name)) for name in ERRNOS}
        found |= {name: rewriting(name) for one in returned if type(one) is bytes for name in texts(one)}
    if kind == "cuda":
        found |= {f"code {code}": returning(lambda _, code=code: code) for code in CUDA_CODES}
    if kind == "display":
        found |= os_errors("EPIPE", "EIO", "ENOSPC")
        found |= {
            "closed": raising(ValueError("I/O on closed file")),
            "RuntimeError": raising(RuntimeError("broken")),
        }
        found["no encoding"] = raising(lambda: UnicodeEncodeError("ascii", "é", 0, 1, "cannot"))
    if kind == "pynvml":
        import pynvml

        codes = [value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")]
        found |= {
            f"NVML {code}": raising(functools.partial(pynvml.NVMLError, code)) for code in sorted(set(codes))
        }
        found["TypeError"] = raising(TypeError("broken"))
    if kind == "psutil":
        import psutil

        names = ("NoSuchProcess", "AccessDenied", "ZombieProcess")
        found |= {name: raising(getattr(psutil, name)(1)) for name in names} | os_errors("EMFILE")
    if kind in ("torch", "memray"):
        found |= {
            name: raising(getattr(builtins, name)("broken")) for name in ("RuntimeError", "AttributeError")
        }
        found |= {"MemoryError": raising(MemoryError)} | os_errors("ENOSPC")
    if kind not in ("libc", "cuda", "display", "thread", "import"):
        for name in {name for one in returned if type(one) in (str, bytes) for name in texts(one)}:
            found[name] = returning(
                lambda one, name=name: texts(one)[name] if type(one) in (str, bytes) else one
            )
        if any(type(one) in (list, tuple, dict) for one in returned):
            found["nothing in it"] = returning(
                lambda one: type(one)() if type(one) in (list, tuple, dict) else one
            )
        if kind != "os" and any(one is not None for one in returned):
            found["None"] = returning(lambda _: None)
    return found


class Faults:
    """Which call fails, in which moment and how; while it learns, which calls there are."""

    def __init__(self):
        self.places, self.moment, self.learns = [], "", False
        self.target, self.fault, self.struck = None, None, 0
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
        if not (aimed or self.learns) or (kind := kind_of(function)) is None:
            return function
        return functools.partial(self._strike if aimed else self._learn, number, kind, function)

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
        waits = functools.partial(self.looked.wait, 0.05)
        self.shell.user_ns.update(Block=Block, blip=blip, Child=Child, at=at, looked=waits)
        live.AFTER_S, live.EVERY_S = 0.0, 0.001
        Publisher.is_publishing = False  # as IPython 9 asks
        self.publishers, self.displays = (self.shell.display_pub, Publisher()), logger.display_for
        self.samplers = sampler.Sampler, functools.partial(sampler.Sampler, delay_s=0.0, period_s=0.001)
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
        self.go()
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
        return result, out.getvalue(), err.getvalue()

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
        from ipygpulogger import IPyGPULogger

        faults, problems, said = self.faults, [], io.StringIO()
        target = faults.target
        self.fresh()
        self.died.clear()
        options = {"report": "text", **self.options}
        if "log" in options:
            options["log"] = self.log
            self.log.unlink(missing_ok=True)
        descriptors, collector = descriptors_now(), (gc.isenabled(), gc.get_threshold())
        il = None
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            for _ in range(2):  # what the user asks for may fail, with a sentence; then again
                try:
                    faults.at("start")
                    il = self.il = il or IPyGPULogger(**options)
                    il.start()
                    break
                except Exception as error:
                    if faults.target is None or not (str(error).strip() or type(error) is MemoryError):
                        problems.append(f"start: {error!r}")
                    said.write(f"ipygpulogger: {error}")
                    faults.at("")
                    faults.target = None
            faults.at("")
        if il is None:
            return [*problems, "it does not start"]
        self.run("first = 1")
        faults.at("before")
        result, out, err = self.run(self.cell)
        count = len(il.history)
        problems += self.wrong(il.record if count == 2 else None, result, out, said.getvalue() + out + err)
        self.forget()
        if faults.target and faults.target[1] != "stop":
            faults.target = None
        result, out, err = self.run(self.cell)
        found = self.wrong(il.record if len(il.history) == count + 1 else None, result, out, "")
        resets = self.options.get("reset_peaks", True) and not self.is_elsewhere(target)
        if not found and il.record.gen.peak.quality != "exact" and resets:
            found = [f"{il.record.gen}"]
        problems += [f"next: {one}" for one in found]
        self.forget()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            faults.at("stop")
            try:
                il.stop()
            except Exception as error:
                problems += [] if type(error) is MemoryError else [f"stop: {error!r}"]
            faults.at("")
            faults.target = None
            il.stop()
        if (gc.isenabled(), gc.get_threshold()) != collector:
            problems.append("the collector")
        left = {name: one for name, one in left_anywhere(self.machines.machine()).items() if one}
        problems += [f"left: {name}: {one}" for name, one in left.items()]
        if len(now := descriptors_now()) > len(descriptors):
            problems.append(f"left: descriptors {now - descriptors}")
        return problems + self.died

    def left_out(self):
        """Whether it was said of an earlier cell that torch makes no sense and is measured no more."""
        return any("left out" in str(note) for record in self.il.history for note in record.notes)

    def is_elsewhere(self, target):
        """Whether the fault says that this is no Linux, which no process becomes one of later."""
        return target is not None and target[1] == "start" and "/status" in target[3]

    def wrong(self, record, result, out, said):
        """What is wrong with a cell and its record, if nothing is said of it."""
        problems = []
        if not result.success or result.result != 42 or not out.startswith("mine\n"):
            problems.append(f"the user's cell: {result.error_before_exec or result.error_in_exec} {out!r}")
        if "Traceback" in said or "Error in callback" in said:
            problems.append(f"shown: {said[-300:]!r}")
        told = "ipygpulogger" in said.replace("ipygpulogger started.", "")
        if record is None:
            return problems + ([] if told else ["no record and no word"])
        gen = record.gen
        if gen is None:
            return problems + ([] if told or record.notes else ["no figure and no word"])
        problems += usage("RAM", gen, 3, 8)
        if self.name.startswith("torch"):
            device = record.gpus[0] if record.gpus else None
            if not (told or record.notes or self.left_out()):
                problems += ["no device"] if device is None else usage("GPU", device, 32, 96)
        if self.name == "children":
            children = record.children
            if children is None:
                problems += [] if told or record.notes else ["no children and no word"]
            else:
                hi = children.peak.hi_bytes
                problems += figure("children", children.peak.lo_bytes, hi, 20, children.peak.quality, 6)
        return problems


def usage(what, found, consumed_mb, needed_mb):
    """What is wrong with the figures of a memory."""
    hi_bytes = found.peak.hi_bytes and found.peak.hi_bytes - found.before_bytes
    return [
        *figure(f"{what} consumed", found.consumed_bytes, found.consumed_bytes, consumed_mb, "exact"),
        *figure(
            f"{what} needed",
            found.peak.lo_bytes - found.before_bytes,
            hi_bytes,
            needed_mb,
            found.peak.quality,
        ),
    ]


def figure(what, lo_bytes, hi_bytes, truth_mb, quality, near_mb=1.2):
    """Whether the truth is where a figure says it is."""
    lo, hi = lo_bytes / MB, None if hi_bytes is None else hi_bytes / MB
    above = lo > truth_mb + near_mb or (quality == "exact" and lo < truth_mb - near_mb)
    below = quality == "bounded" and hi is not None and hi < truth_mb - near_mb
    return [f"{what}: {quality}, {lo} to {hi}, not {truth_mb}"] if above or below else []


def descriptors_now():
    return {one.name for one in pathlib.Path("/proc/self/fd").iterdir()}


def main(names, most="", find=""):
    """Run the combinations of these scenarios that have `find` in their name, evenly so many of them."""
    faults = Asking.aim = Faults()
    builtins.__ask__, builtins.__outside_import__ = faults.ask, outside_import
    sys.meta_path.insert(0, Asking)
    session, problems, counted = Session(faults), [], collections.Counter()
    for name in names.split(","):
        problems += [f"{name}, without a fault: {one}" for one in session.begin(name)]
        combinations = [
            (here, error, fault)
            for here, returned in sorted(faults.found.items(), key=lambda found: found[0])
            for error, fault in errors_of(here[2], returned).items()
            if find in f"{faults.named(here)} {error}"
        ]
        chosen = combinations[:: max(1, len(combinations) // int(most or len(combinations)))]
        counted.update(
            {"calls": len({here[0] for here in faults.found}), "calls and moments": len(faults.found)}
        )
        counted.update({"combinations": len(combinations), "run": len(chosen)})
        for faults.target, error, faults.fault in chosen:
            faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
            combination, faults.struck = f"{name}: {faults.named(faults.target)} {error}", 0
            try:
                found = session.go()
            except BaseException as raised:
                found = [f"escaped: {raised!r}"]
            counted["struck"] += bool(faults.struck)
            problems += [f"{combination}: {one}"[:300] for one in found]
            if "VERBOSE" in os.environ and found:
                print(*problems[-len(found) :], sep="\n", file=sys.__stderr__, flush=True)
        if "VERBOSE" in os.environ:
            print(name, dict(counted), file=sys.__stderr__, flush=True)
    print(json.dumps(counted), *problems[:100], sep="\n", file=sys.__stdout__, flush=True)
    os._exit(bool(problems))


if __name__ == "__main__":
    main(*sys.argv[1:])
