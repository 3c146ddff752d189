# ruff: noqa: PYI024, PTH123 - as psutil makes them; `open` is the builtin here
"""Lets the package run on Linux as on another system: ``SYSTEM=macos`` or ``windows``, this folder on PYTHONPATH.

Python imports this file at its start, also in the kernels and programs that tests start. From then on what a
module of `ipygpulogger` imports or opens is a stand-in: it lacks what that system lacks, and psutil answers in that
system's shape (of 7.2). The tests and all other libraries have the real modules, so the truth stays the truth, and a
test that replaces a function of a module replaces it for the package as well.

What is not simulated: paths (``\\`` and drives), text in another encoding on the console, an open file that cannot
be replaced, and the libraries below us (IPython, ipykernel, the driver), which are Linux's.
"""

import builtins
import importlib
import os
import pathlib
import re
import sys
from collections import namedtuple
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, SimpleNamespace

SYSTEM = os.environ.get("SYSTEM")
WINDOWS = SYSTEM == "windows"
REFUSED = re.compile(r"/(proc|sys|dev/shm)(/|$)")  # what only Linux has

# What `import` does not find there.
NO_MODULES = {
    "windows": "resource fcntl termios pwd grp pty tty syslog curses readline _posixsubprocess _posixshmem",
    "macos": "spwd",
}
# Names that a module lacks there: regular expressions.
NO_NAMES = {
    "windows": {
        "os": r"fork.*|register_at_fork|(get|set)(e|re|res)?[ug]id|[gs]et(groups|pgid|pgrp|sid|priority)|killpg|nice"
        r"|getloadavg|sched_.*|posix_.*|wait[34]?|waitid|W[A-Z]+|P_(ALL|PID|PGID|PIDFD)|sysconf.*|confstr.*|uname"
        r"|O_(CLOEXEC|NONBLOCK|PATH|NOFOLLOW|DIRECTORY|SYNC)|RTLD_.*|(f|l)?chown|fchmod|mkfifo|mknod|memfd_create"
        r"|eventfd.*|openpty|p?(read|write)v|pread|pwrite|sendfile|statvfs|fstatvfs|ctermid|environb|getenvb|pidfd_open"
        r"|tcgetpgrp|tcsetpgrp|sync|fchdir|chroot|spawn.*p.*",
        "signal": r"SIG(?!ABRT|FPE|ILL|INT|SEGV|TERM|_DFL|_IGN)\w+|alarm|[gs]etitimer|ITIMER_.*|pthread_.*|pause|sig(?!nal).*",
        "time": r"clock_.*|CLOCK_.*|pthread_.*|tzset",
        "mmap": r"(MAP|PROT|MADV)_.*",
        "_ctypes": r"dl.*",
        "socket": r"AF_UNIX|SO_REUSEPORT",
        "select": r"poll|epoll|kqueue",
    },
    "macos": {
        "os": r"sched_[gs]etaffinity|waitid|O_PATH|memfd_create|eventfd.*|[gs]etres[ug]id|pidfd_open|RTLD_DEEPBIND"
        r"|posix_fadvise|splice|copy_file_range",
        "signal": r"SIG(CLD|POLL|PWR|RTMIN|RTMAX|STKFLT)|sigtimedwait|sigwaitinfo",
        "time": r"CLOCK_(BOOTTIME|TAI)",
        "mmap": r"MAP_(POPULATE|STACK|EXECUTABLE|DENYWRITE)|MADV_.*HUGE.*",
        "resource": r"RLIMIT_(SIGPENDING|MSGQUEUE|RT.*|NICE)|prlimit|RUSAGE_THREAD",
        "select": r"epoll.*",
    },
}
NOT_IN_LIBC = {"mallinfo", "mallinfo2", "mallopt", "malloc_trim", "prctl", "gettid", "syscall"}
PMEM = {  # psutil.Process().memory_info(), psutil/_ntuples.py
    "macos": "rss vms pfaults pageins",
    "windows": "rss vms num_page_faults peak_wset wset peak_paged_pool paged_pool peak_nonpaged_pool nonpaged_pool"
    " pagefile peak_pagefile private",
}


_own = ModuleType.__dict__["__dict__"].__get__


class Names(dict):
    """The names of a stand-in; what is taken out is taken from the real module."""

    def __init__(self, names, real):
        super().__init__(names)
        self._real = real

    def pop(self, name, *default):
        vars(self._real).pop(name, None)
        return super().pop(name, *default)


class StandIn(ModuleType):
    """A module as it is there: the real one, but for what it lacks and what it has otherwise."""

    def __init__(self, real, lacks, other):
        super().__init__(real.__name__, real.__doc__)
        _own(self).update(_real=real, _lacks=re.compile(lacks or "$."), **other)

    def __getattr__(self, name):
        if self._lacks.fullmatch(name):
            raise AttributeError(f"module {self._real.__name__!r} has no attribute {name!r} on {SYSTEM}")
        return getattr(self._real, name)

    def __setattr__(self, name, value):
        (_own(self).__setitem__ if name in _own(self) else self._setter)(name, value)

    def _setter(self, name, value):
        setattr(self._real, name, value)

    @property
    def __dict__(self):  # where pytest's and unittest's replacements look for what to put back
        return Names({**vars(self._real), **_own(self)}, self._real)

    def __delattr__(self, name):
        delattr(self._real, name)

    def __dir__(self):
        return [name for name in dir(self._real) if not self._lacks.fullmatch(name)]


def refuse(path):
    """Raise if only Linux has this file."""
    if isinstance(path, (str, bytes, os.PathLike)) and REFUSED.match(os.fsdecode(path)):
        raise FileNotFoundError(2, os.strerror(2), os.fsdecode(path))


def refusing(module, name):
    """A function of a module that finds no file of Linux's; what a test put in its place is called, too."""

    def call(path, *args, **options):
        refuse(path)
        return getattr(module, name)(path, *args, **options)

    return call


def can_access(path, mode, **options):
    return not REFUSED.match(os.fsdecode(path)) and os.access(path, mode, **options)


class _IsPath(type(pathlib.Path)):
    def __instancecheck__(cls, value):
        return isinstance(value, pathlib.Path)

    def __subclasscheck__(cls, other):
        return issubclass(other, pathlib.Path)


class PosixPath(pathlib.PosixPath, metaclass=_IsPath):
    """A path that finds no file of Linux's; text without an encoding is in the console's of that system."""

    __slots__ = ()

    def stat(self, **options):
        refuse(self)
        return super().stat(**options)

    def open(self, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        refuse(self)
        if WINDOWS and "b" not in mode and encoding in (None, "locale"):
            encoding = "cp1252"
        return super().open(mode, buffering, encoding, errors, newline)

    def read_bytes(self):
        with self.open("rb") as file:
            return file.read()

    def read_text(self, encoding=None, errors=None):
        with self.open(encoding=encoding, errors=errors) as file:
            return file.read()

    def write_text(self, text, encoding=None, errors=None, newline=None):
        with self.open("w", encoding=encoding, errors=errors, newline=newline) as file:
            return file.write(text)

    def exists(self, **options):
        return not REFUSED.match(str(self)) and super().exists(**options)

    def is_dir(self, **options):
        return not REFUSED.match(str(self)) and super().is_dir(**options)

    def is_file(self, **options):
        return not REFUSED.match(str(self)) and super().is_file(**options)

    def iterdir(self):
        refuse(self)
        return super().iterdir()


def open_file(path, mode="r", buffering=-1, encoding=None, *more, **options):
    refuse(path)
    if WINDOWS and "b" not in mode and encoding is None:
        encoding = "cp1252"
    return builtins.open(path, mode, buffering, encoding, *more, **options)


class Libc:
    """The C library of macOS, as far as Linux has its functions."""

    def __init__(self, real):
        vars(self)["_real"] = real

    def __getattr__(self, name):
        if name in NOT_IN_LIBC or name.startswith("inotify"):
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return getattr(self._real, name)


def library(ctypes, kind):
    """A class of ctypes that loads libraries; ``None`` is this process's, which Windows has not."""

    def load(name, *args, **options):
        if name is not None or args or options.get("handle"):
            return getattr(ctypes, kind)(name, *args, **options)
        if WINDOWS:
            raise TypeError("LoadLibrary() argument 1 must be str, not None")
        return Libc(getattr(ctypes, kind)(None, **options))

    return load


def status_bytes(name):
    """The truth: what Linux says of this process."""
    with builtins.open("/proc/self/status", encoding="ascii") as file:
        return int(re.search(rf"{name}:\s*(\d+) kB", file.read())[1]) * 1024


HIGHEST_BYTES = {}  # by process: Linux rounds its mark, which may fall by that; the others' never fall


def mark_bytes(mark):
    pid = os.getpid()
    HIGHEST_BYTES[pid] = max(HIGHEST_BYTES.get(pid, 0), status_bytes("VmRSS"), mark)
    return HIGHEST_BYTES[pid]


def forget_mark():
    """Reset the mark, as in a new process: what is resident now is the most that ever was."""
    with builtins.open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    HIGHEST_BYTES.clear()


def usage_on_macos(resource):
    def getrusage(who):
        real = resource.getrusage(who)
        figures = {name: getattr(real, name) for name in dir(real) if name.startswith("ru_")}
        highest = real.ru_maxrss * 1024  # in bytes there
        if isinstance(resource.getrusage, BuiltinFunctionType) and who == resource.RUSAGE_SELF:
            highest = mark_bytes(
                status_bytes("VmHWM")
            )  # Linux keeps what there was before `exec` in the other
        return SimpleNamespace(**figures | {"ru_maxrss": highest})

    return getrusage


def process_of(psutil):
    """`psutil.Process` of the running process."""
    pmem, linuxs = namedtuple("pmem", PMEM[SYSTEM]), psutil.Popen.__base__  # a test may have replaced it

    class Process:
        def __init__(self, pid=None):
            self._real = linuxs(pid)

        def memory_info(self):
            real = self._real.memory_info()
            known = {
                "rss": real.rss,
                "wset": real.rss,
                "vms": real.vms,
                "pagefile": real.vms,
                "private": real.vms,
            }
            if WINDOWS:
                known["peak_wset"] = mark_bytes(max(real.rss, status_bytes("VmHWM")))
            return pmem(*(known.get(name, 1) for name in pmem._fields))

        def __getattr__(self, name):
            return getattr(self._real, name)

    def process(*pid):
        return (Process if psutil.Process is linuxs else psutil.Process)(*pid)

    return process


class Loop:
    """The running event loop; Windows' takes no handlers of signals."""

    def __init__(self, real):
        self._real = real

    def add_signal_handler(self, *_):
        raise NotImplementedError  # what asyncio's event loops do on Windows; `run` has to work without a handler

    remove_signal_handler = add_signal_handler

    def __getattr__(self, name):
        return getattr(self._real, name)


def others(name, real):
    """What a module has otherwise there."""
    if name == "os":
        found = {
            each: refusing(real, each) for each in ("open", "listdir", "scandir", "stat", "lstat", "readlink")
        }
        found |= {
            "access": can_access,
            "name": "nt" if WINDOWS else "posix",
            "linesep": "\r\n" if WINDOWS else "\n",
        }
        return (
            found
            if WINDOWS
            else found | {"uname": lambda: SimpleNamespace(sysname="Darwin", release="23.4.0")}
        )
    if name == "sys":
        return {"platform": "win32" if WINDOWS else "darwin"}
    if name == "time":
        return {} if WINDOWS else {"CLOCK_UPTIME_RAW": real.CLOCK_MONOTONIC}
    if name == "pathlib":
        return {"Path": PosixPath, "PosixPath": PosixPath}
    if name == "platform":
        return {
            "system": lambda: "Windows" if WINDOWS else "Darwin",
            "release": lambda: "10" if WINDOWS else "23.4.0",
        }
    if name == "ctypes":
        return {kind: library(real, kind) for kind in ("CDLL", "PyDLL")}
    if name == "resource":
        return {"getrusage": usage_on_macos(real)}
    if name == "psutil":
        return {"Process": process_of(real)}
    if name == "asyncio" and WINDOWS:
        return {"get_running_loop": lambda: Loop(real.get_running_loop())}
    return {}


STAND_INS = {}


def stand_in(real):
    """The module that the package is given in place of this one."""
    name = getattr(real, "__name__", None)  # a test may have put anything there
    if name not in STAND_INS:
        lacks, other = NO_NAMES[SYSTEM].get(name), others(name, real)
        STAND_INS[name] = StandIn(real, lacks, other) if lacks or other else None
    return STAND_INS[name] or real


def import_there(name, globals=None, locals=None, fromlist=(), level=0):  # noqa: A002 - as `__import__` has them
    if level == 0 and name.partition(".")[0] in NO_MODULES[SYSTEM].split():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    found = builtins.__import__(name, globals, locals, fromlist, level)
    return stand_in(found) if level == 0 else found


class Loader:
    """Loads a module of the package as another loader does, with the builtins of the other system."""

    def __init__(self, real, there):
        self._real, self._there = real, there

    def create_module(self, spec):
        return self._real.create_module(spec)

    def exec_module(self, module):
        vars(module)["__builtins__"] = self._there
        self._real.exec_module(module)

    def __getattr__(self, name):
        return getattr(self._real, name)


class Finder:
    """Finds the package's modules as the others do."""

    def __init__(self):
        self._there = {**vars(builtins), "__import__": import_there, "open": open_file}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "ipygpulogger":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = Loader(spec.loader, self._there)
                return spec
        return None


class Finders(list):
    """Ours stays the first: pytest puts its own, which rewrites the asserts of plugins, in front of all."""

    def insert(self, index, finder):
        super().insert(max(index, 1), finder)


def as_installed(code):
    """The code of a stand-in is no more the user's than psutil's is: what it asks for stands under no line."""
    nested = tuple(as_installed(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename="<frozen sitecustomize>", co_consts=nested)


if SYSTEM:
    if SYSTEM not in PMEM:
        raise SystemExit(f"SYSTEM={SYSTEM}: choose macos or windows")
    for one in [*globals().values()]:
        if isinstance(one, FunctionType) and one.__module__ == __name__:
            one.__code__ = as_installed(one.__code__)
    # Programs and kernels that begin in another folder find this one, too.
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, folders))
    # Large blocks go back without `malloc_trim`.
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(128 << 10))
    sys.meta_path = Finders([Finder(), *sys.meta_path])
    importlib.invalidate_caches()
