"""Programs made by hypothesis, and what one can see of a run: for tools that must not be noticed.

`programs()` draws a source text. `observe(source, around)` runs it as a cell's code would run, within a context
manager, and returns everything about the run that a user could see: what it emitted, when its objects died, the
exception that ended it with every line number, and what it left behind in the interpreter's tracing.
"""

import asyncio
import contextlib
import gc
import itertools
import logging
import re
import sys
import threading
import types
import warnings
import weakref
from dataclasses import dataclass

from hypothesis import strategies as st

FILE = "<cell>"
MONITORING = getattr(sys, "monitoring", None)
# On Python 3.10 a traced function's frame keeps a copy of its locals from one event to the next: what the
# function drops may live until the line has ended.
DEATHS_ARE_EXACT = sys.version_info >= (3, 11)


# -- what a program may use: library code, not measured -------------------------------------------------


class Stage:
    """One run: what its program finds in its namespace, and what it emitted."""

    def __init__(self):
        self.events, self.deaths, self._alive = [], [], weakref.WeakValueDictionary()
        offered = "emit lines_of alive probe manager amanager add deco tracer tracers"
        self.names = {name: getattr(self, name) for name in offered.split()}
        self.names |= {"Meta": Meta, "suppressing": suppressing, "tick": tick, "agen": agen}
        self.names |= {"sys": sys, "gc": gc, "asyncio": asyncio, "threading": threading, "arun": asyncio.run}
        self.names |= {"switch": lambda: None, "a": 1, "b": 2, "c": 3, "__name__": "cell"}
        self.names["DEATHS_ARE_EXACT"] = DEATHS_ARE_EXACT

    def emit(self, *values):
        self.events.append(repr(values))
        return values[0] if values else None

    def lines_of(self, error):
        """The line numbers of a traceback, as the program itself sees them."""
        self.events.append(repr(story(error)))

    def alive(self):
        if DEATHS_ARE_EXACT:
            self.events.append(sorted(self._alive))

    def tracers(self):
        """Which trace functions the program finds in place."""
        self.events.append([name_of(find()) for find in (sys.gettrace, threading.gettrace, sys.getprofile)])

    def probe(self, name):
        stage = self

        class Probe:
            def __del__(self):
                stage.died(name)

        found = Probe()
        self._alive[name] = found
        return found

    def died(self, name):
        (self.events if DEATHS_ARE_EXACT else self.deaths).append(f"died {name}")

    @contextlib.contextmanager
    def manager(self, value):
        self.emit("enter", value)
        try:
            yield value
        finally:
            self.emit("exit", value)

    @contextlib.asynccontextmanager
    async def amanager(self, value):
        self.emit("aenter", value)
        await tick()
        try:
            yield value
        finally:
            self.emit("aexit", value)

    def add(self, *values, **more):
        return sum(value for value in (*values, *more.values()) if isinstance(value, int))

    def deco(self, function):
        def wrapper(*args, **more):
            self.emit("calls", function.__name__)
            return function(*args, **more)

        return wrapper

    def tracer(self, kind):
        """A trace or profile function of the user's."""

        def trace(frame, event, _arg):
            if frame.f_code.co_filename == FILE:
                self.events.append((kind, event, frame.f_code.co_name, frame.f_lineno))
                return trace
            return None

        return trace


class Meta(type):
    def __call__(cls, *args):
        found = super().__call__(*args)
        found.made = cls.__name__
        return found


suppressing = contextlib.suppress(ValueError, KeyError)


async def tick():
    await asyncio.sleep(0)


async def agen(count):
    for i in range(count):
        await tick()
        yield i


# -- the grammar ------------------------------------------------------------------------------------

# `$e` is an expression, `$s` a shorter one, `$p` its text as a literal, `$v` a variable, `$k` a small number, `$N` and
# `$M` are new names, and `[[a|b]]` is one of several.
LEAVES = ["$k", "$v"]
EXPRESSIONS = [
    *LEAVES,
    "($e [[+|*|-|or|and]] $e)",
    "($e // $e)",
    "emit($e)",
    "(lambda q: q + $e)($e)",
    "add(*[i + $e for i in range($k) if i != $k])",
    "sum(i * $e for i in range($k))",
    "len({i: $e for i in {1, 2}})",
    "($e if $e else $e)",
    "(w := $e)",
    "add(*[$e], **{'k': $e})",
    "($e < $e < $e)",
    "len(f'{$v}')",
    "[1, 2][$k]",
    "id(probe('$N')) * 0",
    "sys._getframe().f_lineno",
]

# Of statements, `$block` is a block within, also in a loop (`+loop`), or in another function (`=function`). Lines that
# begin with `?` are left out sometimes; after an exception in those with `~` the program mostly goes on, and tells of it.
SIMPLE = """
$v = $e
--
emit($e)
--
$v += $e
--
[[pass|...|'text'|assert a or not a|note: int]]
--
$v = add(
    $e,
    $e
    + $e,
    k=[$e
       for i in range($k)
       if $s],
)
--
a = $s; emit(a); b = $s
--
[[for i in range($k)|if $s|while emit(0)]]: emit($s); c = $s
--
$N = probe('$N')
alive()
[[del $N|$N = None|$N = $N, $N; $N = 1|pass]]
alive()
emit(probe('$M') and 1)
--
del $v
? $v = $e
"""
COMPOUND = """
if $e:
    $block
? elif $e:
?     $block
?? else:
??     $block
--
for c in [[range($k)|(1, 2)|(emit(i) for i in (1, 2))]]:
    $block +loop
? else:
?     $block
--
$N = $k
while [[$N > 0|($N > 0 and emit(1))|($N := $N) > 0]]:
    $N -= 1
    $block +loop
? else:
?     $block
--
try:
    $block
except [[ValueError|KeyError|ZeroDivisionError|RuntimeError|(NameError, TypeError)|Exception]] as error:
    lines_of(error)
    $block
    [[pass|pass|pass|raise]]
? except Exception:
?     $block
?? else:
??     $block
??? finally:
???     $block
--
try:
    $block
finally:
    $block
--
with [[manager($s) as a|suppressing|manager($s), suppressing]]:
    $block
--
with (
    suppressing,
    manager(4) as b,
):
    $block
--
match [[$e|[a, b]|a, b, c]]:
    case 0:
        $block
    case int() if $s:
        $block
    case [a, *_]:
        $block
?     case _:
?         $block
--
if $s:
    raise [[ValueError|KeyError|ZeroDivisionError|RuntimeError]]($s)[[|| from None| from KeyError('cause')]]
--
? @deco
?? @deco
def $N(a, b=$s, *r, c=$s, **s):
    $block =function
?     return $e
~ emit([[$N($s)|$N(*[1, 2, 3], c=$s, d=4)|$N()]])
? del $N
--
def $N(a, b=1):
    def inner():
        [[nonlocal a|global a|global c, a]]
        a = $e
        $block =function
        return a
    c = $e
    return inner() + inner()
~ emit($N($s))
--
def $N(depth, a=1, b=2, c=3):
    if depth <= 0:
        $block =function
        return $e
    return add($N(depth - 1), $s)
~ emit($N($k))
--
class $N[[|(metaclass=Meta)|(Exception)|(dict)]]:
    b = $e
    $block =class
    def method(self, a=1, b=2, c=3):
        $block =function
    def __del__(self):
        emit('del', '$N') if DEATHS_ARE_EXACT else None
~ o = $N()
~ emit(o.method(), o.__dict__)
~ del o
~ alive()
--
def $N(a=1, b=2, c=3):
    $block =function,generator
    yield $e
g = $N()
~ emit(next(g))
~ [[emit(next(g))|emit(g.send(2))|emit(g.throw(ValueError('thrown')))|g.close()|pass]]
~ [[emit(next(g))|emit(g.send(2))|emit(g.throw(ValueError('thrown')))|g.close()|pass]]
~~ [[emit(list(g))|del g|g = None|g.close()|for c in g: emit(c)]]
--
async def $N(a=1, b=2, c=3):
    $block =function,async
    return $e
async def $M(a=1, b=2, c=3):
    $block =function,async,generator
    yield $e
async def $O(a=1, b=2, c=3):
    task = asyncio.ensure_future($N())
    emit([i async for i in $M()])
    await tick()
    emit(await asyncio.gather($N(), task))
~ emit(arun([[$N|$O]]()))
--
$N = [probe('$N')]
$N.append($N)
del $N
alive()
gc.collect()
--
def $N(a=1, b=2, c=3):
    try:
        $block =function
    except Exception as error: lines_of(error)
t = threading.Thread(target=$N); t.start(); t.join()
--
exec($p)
emit(eval($p))
--
def $N():
    emit($s)
    return $s
sys.set[[trace(tracer('t'))|profile(tracer('p'))]]
~ $N()
? sys.settrace(None); sys.setprofile(None)
"""
MONITORED = """
tracers()
--
def $N():
    emit($s)
    return $s
m = sys.monitoring
tool = next(i for i in (5, 4, 3, 2) if m.get_tool(i) is None)
m.use_tool_id(tool, 'program')
m.register_callback(tool, m.events.LINE, lambda code, line: emit(code.co_name, line))
m.set_local_events(tool, $N.__code__, m.events.LINE)
~ $N()
? m.restart_events()
~ $N()
m.register_callback(tool, m.events.LINE, None)
m.set_local_events(tool, $N.__code__, 0)
m.free_tool_id(tool)
"""
SIMPLE, COMPOUND, MONITORED = (text.strip("\n").split("\n--\n") for text in (SIMPLE, COMPOUND, MONITORED))
COMPOUND += MONITORED if MONITORING else []
WITHIN = {
    "loop": ["if $s: [[break|continue]]", "if $s:\n    [[break|continue]]"],
    "function": ["if $s:\n    return $e"],
    "generator": [
        "[[yield $s|a = yield $s|emit((yield $s))]]",
        "[[b = yield from (1, 2)|yield from [3, 4]]]",
    ],
    "async": [
        "[[await tick()|await asyncio.sleep(0); emit(1)|emit(await tick())]]",
        "async for c in agen($k):\n    $block +loop",
        "async with amanager($s) as a:\n    $block",
    ],
}
ASYNC_GENERATOR = ["if $s:\n    return", "yield $s"]  # where these two are other than in either
SLOT = re.compile(r"\$([espvkNMO])|\[\[(.*?)\]\](?!\])")
LINE = re.compile(r"(?:([?~]+) )?( *)(.*)")


class Writer:
    """Writes one program; every draw is hypothesis's, so that programs shrink."""

    def __init__(self, draw, *, switches):
        self._draw, self._switches, self._serial, self._left = draw, switches, 0, 24
        self._walrus = True

    def one_of(self, *things):
        return self._draw(st.sampled_from(things))

    def fill(self, text, depth, names):
        """Replace the slots of one line."""

        def slot(match):
            kind, options = match.groups()
            if kind is None:
                return self.fill(self.one_of(*options.split("|")), depth, names)
            if kind in "es":
                return self.expression(min(depth, 1) if kind == "s" else depth)
            if kind in "vk":
                return self.one_of("a", "b", "c") if kind == "v" else str(self._draw(st.integers(0, 3)))
            if kind == "p":
                return repr(self.expression(1))
            self._serial += kind not in names
            return names.setdefault(kind, f"n{self._serial}")

        return SLOT.sub(slot, text)

    def expression(self, depth):
        kinds = [one for one in (EXPRESSIONS if depth else LEAVES) if self._walrus or ":=" not in one]
        return self.fill(self.one_of(*kinds), depth - 1, {})

    def block(self, inside, depth):
        count = 1 + self._draw(st.integers(0, 2))
        return [line for _ in range(count) for line in self.statement(inside, depth)]

    def statement(self, inside, depth):
        self._left -= 1
        kinds = SIMPLE + (COMPOUND if depth and self._left > 0 else []) + ["switch()"] * 4 * self._switches
        within = inside - {"function", "generator"} if {"async", "generator"} <= inside else inside
        kinds += [one for kind in sorted(within) for one in WITHIN.get(kind, ())]
        kinds += ASYNC_GENERATOR if within != inside else []
        return self.lines(self.one_of(*kinds), inside, depth - 1)

    def lines(self, template, inside, depth):
        found, names = [], {}
        before = self._walrus
        self._walrus &= not template.startswith("class")  # not in its comprehensions
        parts = (LINE.fullmatch(line).groups() for line in template.split("\n"))
        for mark, group in itertools.groupby(parts, lambda part: part[0]):
            if mark and mark[0] == "?" and not self._draw(st.booleans()):
                continue
            lines = []
            for _, indent, text in group:
                if text.startswith("$block"):
                    lines += [indent + line for line in self.inner(text, inside, depth)]
                else:
                    lines.append(indent + self.fill(text, 2, names))
            if mark and mark[0] == "~" and self._draw(st.integers(0, 4)) < 4:
                tried = ["    " + line for line in lines]
                lines = ["try:", *tried, "except Exception as error:", "    lines_of(error)"]
            found += lines
        self._walrus = before
        return found

    def inner(self, slot, inside, depth):
        sign, kinds = slot[7:8], frozenset(filter(None, slot[8:].split(",")))
        before = self._walrus
        self._walrus &= "class" not in kinds  # not in its comprehensions
        lines = self.block(inside | kinds if sign == "+" else kinds if sign == "=" else inside, depth)
        self._walrus = before
        return lines


@st.composite
def programs(draw, *, switches=False):
    """A cell's text that compiles; with calls of `switch()` where these are asked for."""
    writer = Writer(draw, switches=switches)
    lines = []
    for _ in range(draw(st.integers(1, 6))):
        lines += writer.statement(frozenset(), 3)
    return "\n".join(lines) + "\n"


# -- a run -----------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What one can see of a run."""

    events: list
    deaths: list
    error: list
    tracing: dict
    names: list


def story(error, *, below=None):
    """An exception with its chain: types, messages, and every line of their tracebacks within the program."""
    found = []
    while error is not None and len(found) < 20:
        rows, traceback = [], error.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            rows.append((code.co_name, traceback.tb_lineno if code.co_filename == FILE else "library"))
            traceback = traceback.tb_next
        found.append((type(error).__name__, str(error), rows))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def tracing_state(code):
    """Everything that the interpreter keeps of tracing, profiling and monitoring."""
    asked = {"trace": sys.gettrace, "threads trace": threading.gettrace, "profile": sys.getprofile}
    state = {name: name_of(find()) for name, find in asked.items()}
    if MONITORING:
        for tool in range(6):
            owner = MONITORING.get_tool(tool)
            if owner is not None:
                local = [MONITORING.get_local_events(tool, part) for part in nested(code)]
                state[f"tool {owner}"] = (MONITORING.get_events(tool), local)
        state["tools"] = sorted(filter(None, map(MONITORING.get_tool, range(6))))
    return state


def free_tools(code):
    """End what a program monitors still."""
    for tool in range(6) if MONITORING else ():
        if MONITORING.get_tool(tool) == "program":
            for part in nested(code):
                MONITORING.set_local_events(tool, part, 0)
            MONITORING.register_callback(tool, MONITORING.events.LINE, None)
            MONITORING.free_tool_id(tool)


def name_of(function):
    return function and getattr(function, "__qualname__", repr(function))


def nested(code):
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return [code, *(part for const in inner for part in nested(const))]


def compiled(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # since Python 3.14: a `return` in a `finally`
        return compile(source, FILE, "exec")


def observe(source, around=contextlib.nullcontext, *, names=None):
    """Run a program within `around()`, and say what was to be seen; the interpreter is cleaned up after it."""
    code = compiled(source)
    stage, error = Stage(), None
    stage.names |= names or {}
    ours = set(stage.names)

    def unraisable(seen):
        stage.events.append(("unraisable", type(seen.exc_value).__name__, str(seen.exc_value)))

    before, sys.unraisablehook = sys.unraisablehook, unraisable
    logging.getLogger("asyncio").disabled = True  # exceptions that no task's owner asked for
    gc.disable()  # when it would collect depends on how many objects others make
    gc.freeze()  # what is not the program's: no collection of its looks at that
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # coroutines that were never awaited
            with around():
                try:
                    exec(code, stage.names)
                except Exception as raised:
                    error = story(raised)
            tracing = tracing_state(code)
            sys.settrace(None)
            sys.setprofile(None)
            left = sorted(set(stage.names) - ours)
            for name in left:
                del stage.names[name]
            gc.collect()
    finally:
        sys.settrace(None)
        sys.setprofile(None)
        free_tools(code)
        gc.unfreeze()
        gc.enable()
        sys.unraisablehook = before
        logging.getLogger("asyncio").disabled = False
    return Seen(stage.events, sorted(stage.deaths), error or [], tracing, left)
