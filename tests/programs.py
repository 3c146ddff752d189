"""Programs made by hypothesis, and what one can see of a run: for tools that must not be noticed.

`programs()` draws a source text. `observe(source, around)` runs it as a cell's code would run, within a context
manager, and returns everything about the run that a user could see: what it emitted, when its objects died, the
exception that ended it with every line number, and what it left behind in the interpreter's tracing.
"""

import asyncio
import contextlib
import gc
import logging
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
EXCEPTIONS = ["ValueError", "KeyError", "ZeroDivisionError", "RuntimeError"]


# -- what a program may use: library code, not measured -------------------------------------------------


class Stage:
    """One run: what its program finds in its namespace, and what it emitted."""

    def __init__(self):
        self.events, self.deaths, self._alive = [], [], weakref.WeakValueDictionary()
        self.names = {
            name: getattr(self, name)
            for name in (
                "emit",
                "lines_of",
                "alive",
                "probe",
                "manager",
                "amanager",
                "add",
                "deco",
                "tracer",
                "tracers",
            )
        }
        self.names |= {
            "Meta": Meta,
            "suppressing": suppressing,
            "tick": tick,
            "agen": agen,
            "arun": asyncio.run,
        }
        self.names |= {"sys": sys, "gc": gc, "asyncio": asyncio, "threading": threading}
        self.names |= {"switch": lambda: None, "a": 1, "b": 2, "c": 3, "__name__": "cell"}

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


class Writer:
    """Writes one program; every draw is hypothesis's, so that programs shrink."""

    def __init__(self, draw, *, switches):
        self._draw, self._switches, self._serial, self._left = draw, switches, 0, 24
        self._walrus = True

    def one_of(self, *things):
        return self._draw(st.sampled_from(things))

    def maybe(self):
        return self._draw(st.booleans())

    def number(self, high=3):
        return self._draw(st.integers(0, high))

    def name(self):
        self._serial += 1
        return f"n{self._serial}"

    # Expressions, each on one line.

    def expr(self, depth=2):
        kinds = ["number", "name"]
        if depth:
            kinds += ["sum", "division", "emit", "lambda", "listcomp", "genexp", "dictcomp", "ternary"]
            kinds += ["walrus", "stars", "chain", "text", "index", "probe", "here"]
        return getattr(self, f"expr_{self.one_of(*kinds)}")(depth - 1)

    def expr_number(self, _):
        return str(self.number(9))

    def expr_name(self, _):
        return self.one_of("a", "b", "c")

    def expr_sum(self, depth):
        return f"({self.expr(depth)} {self.one_of('+', '*', '-', 'or', 'and')} {self.expr(depth)})"

    def expr_division(self, depth):
        return f"({self.expr(depth)} // {self.expr(depth)})"

    def expr_emit(self, depth):
        return f"emit({self.expr(depth)})"

    def expr_lambda(self, depth):
        return f"(lambda q: q + {self.expr(depth)})({self.expr(depth)})"

    def expr_listcomp(self, depth):
        return f"add(*[i + {self.expr(depth)} for i in range({self.number()}) if i != {self.number()}])"

    def expr_genexp(self, depth):
        return f"sum(i * {self.expr(depth)} for i in range({self.number()}))"

    def expr_dictcomp(self, depth):
        return f"len({{i: {self.expr(depth)} for i in {{1, 2}}}})"

    def expr_ternary(self, depth):
        return f"({self.expr(depth)} if {self.expr(depth)} else {self.expr(depth)})"

    def expr_walrus(self, depth):
        inner = self.expr(depth)
        return f"(w := {inner})" if self._walrus else inner

    def expr_stars(self, depth):
        return f"add(*[{self.expr(depth)}], **{{'k': {self.expr(depth)}}})"

    def expr_chain(self, depth):
        return f"({self.expr(depth)} < {self.expr(depth)} < {self.expr(depth)})"

    def expr_text(self, depth):
        return f"len(f'{{{self.expr_name(depth)}}}')"

    def expr_index(self, _):
        return f"[1, 2][{self.number(2)}]"

    def expr_probe(self, _):
        return f"id(probe({self.name()!r})) * 0"

    def expr_here(self, _):
        return "sys._getframe().f_lineno"

    # Statements: lists of lines.

    def block(self, inside, depth):
        lines = []
        for _ in range(1 + self.number(2)):
            lines += self.statement(inside, depth)
        return ["    " + line for line in lines]

    def statement(self, inside, depth):
        self._left -= 1
        kinds = ["assign", "emit", "augment", "spread", "semicolons", "probes", "delete", "short", "nothing"]
        if depth and self._left > 0:
            kinds += ["if", "for", "while", "try", "with", "match", "function", "generator", "class"]
            kinds += ["recursion", "async", "scoped", "cycle", "thread", "raise", "execute"]
            kinds += ["foreign"]
        kinds += ["switch"] * 4 * self._switches
        if "loop" in inside:
            kinds += ["break", "continue"]
        if "function" in inside:
            kinds += ["return"]
        if "generator" in inside:
            kinds += ["yield", "delegate"]
        if "async" in inside:
            kinds += ["await", "asyncfor", "asyncwith"]
        return getattr(self, f"statement_{self.one_of(*kinds)}")(inside, depth - 1)

    def statement_assign(self, *_):
        return [f"{self.expr_name(0)} = {self.expr()}"]

    def statement_emit(self, *_):
        return [f"emit({self.expr()})"]

    def statement_augment(self, *_):
        return [f"{self.expr_name(0)} += {self.expr()}"]

    def statement_nothing(self, *_):
        return [self.one_of("pass", "...", "'text'", "assert a or not a", "note: int")]

    def statement_spread(self, *_):
        """An expression over several lines."""
        return [
            f"{self.expr_name(0)} = add(",
            f"    {self.expr()},",
            f"    {self.expr()}",
            f"    + {self.expr()},",
            f"    k=[{self.expr()}",
            f"       for i in range({self.number()})",
            f"       if {self.expr(1)}],",
            ")",
        ]

    def statement_semicolons(self, *_):
        return [f"a = {self.expr(1)}; emit(a); b = {self.expr(1)}"]

    def statement_short(self, *_):
        """A whole loop or branch on its line."""
        head = self.one_of(f"for i in range({self.number()})", f"if {self.expr(1)}", "while emit(0)")
        return [f"{head}: emit({self.expr(1)}); c = {self.expr(1)}"]

    def statement_probes(self, *_):
        """Objects that end by `del`, by another value, as nobody's."""
        name = self.name()
        end = self.one_of(
            [f"del {name}"], [f"{name} = None"], [f"{name} = {name}, {name}", f"{name} = 1"], []
        )
        return [
            f"{name} = probe({name!r})",
            "alive()",
            *end,
            "alive()",
            f"emit(probe({self.name()!r}) and 1)",
        ]

    def statement_delete(self, *_):
        name = self.expr_name(0)
        return [f"del {name}", *([f"{name} = {self.expr()}"] * self.maybe())]

    def statement_if(self, inside, depth):
        return [
            f"if {self.expr()}:",
            *self.block(inside, depth),
            *([f"elif {self.expr()}:", *self.block(inside, depth)] if self.maybe() else []),
            *(["else:", *self.block(inside, depth)] if self.maybe() else []),
        ]

    def statement_for(self, inside, depth):
        source = self.one_of(f"range({self.number()})", "(1, 2)", "(emit(i) for i in (1, 2))")
        otherwise = ["else:", *self.block(inside, depth)] if self.maybe() else []
        return [f"for c in {source}:", *self.block(inside | {"loop"}, depth), *otherwise]

    def statement_while(self, inside, depth):
        name = self.name()
        otherwise = ["else:", *self.block(inside, depth)] if self.maybe() else []
        test = self.one_of(f"{name} > 0", f"({name} > 0 and emit(1))", f"({name} := {name}) > 0")
        return [
            f"{name} = {self.number()}",
            f"while {test}:",
            f"    {name} -= 1",
            *self.block(inside | {"loop"}, depth),
            *otherwise,
        ]

    def statement_try(self, inside, depth):
        lines = ["try:", *self.block(inside, depth)]
        handled = self.maybe()
        if handled:
            caught = self.one_of(*EXCEPTIONS, "(NameError, TypeError)", "Exception")
            lines += [f"except {caught} as error:", "    lines_of(error)", *self.block(inside, depth)]
            lines += ["    raise"] * (self.number(5) == 5)
            if self.maybe():
                lines += ["except Exception:", *self.block(inside, depth)]
            if self.maybe():
                lines += ["else:", *self.block(inside, depth)]
        if not handled or self.maybe():
            lines += ["finally:", *self.block(inside, depth)]
        return lines

    def statement_with(self, inside, depth):
        head = self.one_of(
            f"with manager({self.expr(1)}) as a:",
            "with suppressing:",
            f"with manager({self.expr(1)}), suppressing:",
            "with (\n    suppressing,\n    manager(4) as b,\n):",
        )
        return [*head.split("\n"), *self.block(inside, depth)]

    def statement_match(self, inside, depth):
        return [
            f"match {self.one_of(self.expr(), '[a, b]', 'a, b, c')}:",
            "    case 0:",
            *("    " + line for line in self.block(inside, depth)),
            f"    case int() if {self.expr(1)}:",
            *("    " + line for line in self.block(inside, depth)),
            "    case [a, *_]:",
            *("    " + line for line in self.block(inside, depth)),
            *(
                ["    case _:", *("    " + line for line in self.block(inside, depth))]
                if self.maybe()
                else []
            ),
        ]

    def statement_raise(self, *_):
        kind = self.one_of(*EXCEPTIONS)
        end = self.one_of("", "", " from None", f" from {self.one_of(*EXCEPTIONS)}('cause')")
        return [f"if {self.expr(1)}:", f"    raise {kind}({self.expr(1)}){end}"]

    def statement_break(self, *_):
        return [f"if {self.expr(1)}: break"] if self.maybe() else [f"if {self.expr(1)}:", "    break"]

    def statement_continue(self, *_):
        return [f"if {self.expr(1)}: continue"] if self.maybe() else [f"if {self.expr(1)}:", "    continue"]

    def statement_return(self, inside, _):
        bare = "generator" in inside and "async" in inside
        return [f"if {self.expr(1)}:", "    return" if bare else f"    return {self.expr()}"]

    def statement_function(self, _, depth):
        name = self.name()
        head = f"def {name}(a, b={self.expr(1)}, *r, c={self.expr(1)}, **s):"
        call = self.one_of(
            f"{name}({self.expr(1)})", f"{name}(*[1, 2, 3], c={self.expr(1)}, d=4)", f"{name}()"
        )
        return [
            *(["@deco"] * self.number(2)),
            head,
            *self.block({"function"}, depth),
            *([f"    return {self.expr()}"] * self.maybe()),
            *self.careful([f"emit({call})"]),
            *([f"del {name}"] * self.maybe()),
        ]

    def statement_scoped(self, _, depth):
        """Closures, `nonlocal` and `global`."""
        name = self.name()
        return [
            f"def {name}(a, b=1):",
            "    def inner():",
            f"        {self.one_of('nonlocal a', 'global a', 'global c, a')}",
            f"        a = {self.expr()}",
            *("    " + line for line in self.block({"function"}, depth)),
            "        return a",
            f"    c = {self.expr()}",
            "    return inner() + inner()",
            *self.careful([f"emit({name}({self.expr(1)}))"]),
        ]

    def statement_recursion(self, _, depth):
        name = self.name()
        return [
            f"def {name}(depth, a=1, b=2, c=3):",
            "    if depth <= 0:",
            *("    " + line for line in self.block({"function"}, depth)),
            f"        return {self.expr()}",
            f"    return add({name}(depth - 1), {self.expr(1)})",
            *self.careful([f"emit({name}({self.number(4)}))"]),
        ]

    def statement_class(self, _, depth):
        name = self.name()
        base = self.one_of("", "(metaclass=Meta)", "(Exception)", "(dict)")
        before, self._walrus = self._walrus, False  # not allowed in comprehensions of a class
        body = [f"    b = {self.expr()}", *self.block(frozenset(), depth)]
        self._walrus = before
        return [
            f"class {name}{base}:",
            *body,
            "    def method(self, a=1, b=2, c=3):",
            *("    " + line for line in self.block({"function"}, depth)),
            *(["    def __del__(self):", f"        emit('del', {name!r})"] if DEATHS_ARE_EXACT else []),
            *self.careful([f"o = {name}()", "emit(o.method(), o.__dict__)", "del o", "alive()"]),
        ]

    def statement_generator(self, _, depth):
        name = self.name()
        steps = [
            self.one_of(
                "emit(next(g))", "emit(g.send(2))", "emit(g.throw(ValueError('thrown')))", "g.close()"
            )
            for _ in range(self.number())
        ]
        end = self.one_of("emit(list(g))", "del g", "g = None", "g.close()", "for c in g: emit(c)")
        return [
            f"def {name}(a=1, b=2, c=3):",
            *self.block({"function", "generator"}, depth),
            f"    yield {self.expr()}",
            f"g = {name}()",
            *self.careful(["emit(next(g))", *steps]),
            *self.careful([end]),
        ]

    def statement_yield(self, *_):
        return [
            self.one_of(f"yield {self.expr(1)}", f"a = yield {self.expr(1)}", f"emit((yield {self.expr(1)}))")
        ]

    def statement_delegate(self, inside, _):
        if "async" in inside:
            return [f"yield {self.expr(1)}"]
        return [self.one_of("b = yield from (i for i in (1, 2))", "yield from [3, 4]")]

    def statement_async(self, _, depth):
        one, two, steps = self.name(), self.name(), self.name()
        main = self.one_of(f"{one}()", f"{two}()")
        return [
            f"async def {one}(a=1, b=2, c=3):",
            *self.block({"function", "async"}, depth),
            f"    return {self.expr()}",
            f"async def {steps}(a=1, b=2, c=3):",
            *self.block({"function", "async", "generator"}, depth),
            f"    yield {self.expr()}",
            f"async def {two}(a=1, b=2, c=3):",
            f"    task = asyncio.ensure_future({one}())",
            f"    emit([i async for i in {steps}()])",
            "    await tick()",
            f"    emit(await asyncio.gather({one}(), task))",
            *self.careful([f"emit(arun({main}))"]),
        ]

    def statement_await(self, *_):
        return [self.one_of("await tick()", "await asyncio.sleep(0); emit(1)", "emit(await tick())")]

    def statement_asyncfor(self, inside, depth):
        return [f"async for c in agen({self.number()}):", *self.block(inside | {"loop"}, depth)]

    def statement_asyncwith(self, inside, depth):
        return [f"async with amanager({self.expr(1)}) as a:", *self.block(inside, depth)]

    def statement_cycle(self, *_):
        name = self.name()
        return [
            f"{name} = [probe({name!r})]",
            f"{name}.append({name})",
            f"del {name}",
            "alive()",
            "gc.collect()",
        ]

    def statement_thread(self, _, depth):
        name = self.name()
        return [
            f"def {name}(a=1, b=2, c=3):",
            *self.careful(self.block({"function"}, depth), dedent=True),
            f"t = threading.Thread(target={name}); t.start(); t.join()",
        ]

    def statement_execute(self, *_):
        return [f"exec({f'b = {self.expr(1)}; emit(b)'!r})", f"emit(eval({self.expr(1)!r}))"]

    def statement_foreign(self, *_):
        """Code that traces, profiles or monitors on its own, and may leave it on."""
        name = self.name()
        inner = [f"def {name}():", f"    emit({self.expr(1)})", f"    return {self.expr(1)}"]
        call = self.careful([f"{name}()"])
        choices = [
            ["sys.settrace(tracer('t'))", *call, *(["sys.settrace(None)"] * self.maybe())],
            ["sys.setprofile(tracer('p'))", *call, *(["sys.setprofile(None)"] * self.maybe())],
        ]
        if MONITORING:
            choices.append(
                [
                    "m = sys.monitoring",
                    "tool = next(i for i in (5, 4, 3, 2) if m.get_tool(i) is None)",
                    "m.use_tool_id(tool, 'program')",
                    "m.register_callback(tool, m.events.LINE, lambda code, line: emit(code.co_name, line))",
                    f"m.set_local_events(tool, {name}.__code__, m.events.LINE)",
                    *call,
                    *(["m.restart_events()"] * self.maybe()),
                    *call,
                    "m.register_callback(tool, m.events.LINE, None)",
                    f"m.set_local_events(tool, {name}.__code__, 0)",
                    "m.free_tool_id(tool)",
                ]
            )
            choices.append(["tracers()"])
        return inner + self.one_of(*choices)

    def statement_switch(self, *_):
        return ["switch()"]

    def careful(self, lines, *, dedent=False):
        """Mostly the program goes on after an exception, and tells of it."""
        if dedent:
            inner = [line[4:] for line in lines]
            whole = ["try:", *("    " + line for line in inner), "except Exception as error: lines_of(error)"]
            return ["    " + line for line in whole]
        if self.number(4) == 4:
            return lines
        return [
            "try:",
            *("    " + line for line in lines),
            "except Exception as error:",
            "    lines_of(error)",
        ]


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
    state = {
        "trace": name_of(sys.gettrace()),
        "threads trace": name_of(threading.gettrace()),
        "profile": name_of(sys.getprofile()),
    }
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
    return [
        code,
        *(part for const in code.co_consts if isinstance(const, types.CodeType) for part in nested(const)),
    ]


def observe(source, around=contextlib.nullcontext, *, names=None):
    """Run a program within `around()`, and say what was to be seen; the interpreter is cleaned up after it."""
    code = compile(source, FILE, "exec")
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
