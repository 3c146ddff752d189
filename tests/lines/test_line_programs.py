"""Lines under programs that hypothesis makes: nobody notices them, and every figure is the model's."""

import contextlib
from collections import defaultdict
from dataclasses import dataclass, field

import programs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from memory import MB, Block, blip
from programs import DEATHS_ARE_EXACT, FILE, MONITORING, observe

from ipygpulogger.lines.line_profiler import LineProfiler

# All but `explain`, in which hypothesis itself traces.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)


def examples(count):
    return settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=count, phases=PHASES)


def of_cell(frame):
    return frame.f_code.co_filename == FILE


def of_functions(frame):
    return frame.f_code.co_filename == FILE and frame.f_code.co_name != "<module>"


def nothing(_frame):
    return False


@contextlib.contextmanager
def measured(*wants):
    """With as many `LineProfiler`s at once; they end in the order in which they began, which is not that of blocks."""
    several = [LineProfiler(want) for want in wants]
    for lines in several:
        lines.start()
    try:
        yield several
    finally:
        for lines in several:
            lines.stop()
            lines.stop()
            assert not [
                note for note in lines.notes(lambda _: ("", 0)) if "Error" in note and "Recursion" not in note
            ]


# -- nobody notices ------------------------------------------------------------------------------------


@examples(120)
@given(programs.programs(), st.sampled_from([(of_cell,), (of_cell,), (of_cell, of_functions, nothing)]))
def test_a_program_runs_as_without(source, wants):
    """The same results, exceptions, line numbers, lifetimes of objects, and state of the interpreter's tracing."""
    assert observe(source, lambda: measured(*wants)) == observe(source)


@examples(40)
@given(programs.programs(switches=True))
def test_begun_and_ended_in_the_middle(source):
    """Switched on and off from within the program, at any depth of its stack."""
    several = []

    def switch():
        if several and several[-1] is not None:
            several[-1].stop()
            several.append(None)
        else:
            several.append(LineProfiler(of_cell))
            several[-1].start()

    @contextlib.contextmanager
    def switched_off():
        try:
            yield
        finally:
            if several and several[-1] is not None:
                several[-1].stop()

    told = observe(source, switched_off, names={"switch": switch})
    assert told == observe(source)


RECURSION = """
def down():
    global depth
    depth += 1
    down()
for _ in range(2):
    depth = 0
    try:
        down()
    except RecursionError as error:
        emit(str(error)[:32])
    told.append(depth)
kept = Block(64)
"""


def test_a_recursion_without_end():
    """The same exception, a few frames earlier at most (ours stand on the stack too); then all goes on.

    No line of it is left open; nothing is told of lines, and a note says why.
    """
    bare, told = [], []
    assert observe(RECURSION, names={"told": bare, "Block": Block}).events
    with_lines = {}

    @contextlib.contextmanager
    def around():
        with measured(of_cell) as (lines,):
            yield
        with_lines["lines"] = lines

    seen = observe(RECURSION, around, names={"told": told, "Block": Block})
    assert seen == observe(RECURSION, names={"told": [], "Block": Block})
    assert all(0 <= one - other <= 10 for one, other in zip(bare, told, strict=True))
    lines = with_lines["lines"]
    found, notes = told_by(lines), lines.notes(lambda _: ("", 0))
    if any("the stack was full" in note for note in notes):
        assert not found
    else:  # before 3.12 Python itself ends a trace function that it has no room to call
        assert not MONITORING
        assert any("tracing was ended" in note for note in notes)
    for at, (_, consumed_mb, peaked_mb) in found.items():
        assert abs(consumed_mb - 64 * (at == 13)) <= 2, at  # of lines that nobody saw the end of, nothing
        assert peaked_mb <= 2


# -- the figures ---------------------------------------------------------------------------------------


@dataclass
class Node:
    """A statement: what it is, the statements in it, and the line on which it comes to stand."""

    kind: str
    name: str = ""
    size_mb: int = 0
    count: int = 0
    blocks: tuple = ()
    at: int = 0


@dataclass
class Frame:
    """A call: the line that is open in it, and what its variables hold."""

    line: int | None = None
    held: dict = field(default_factory=dict)
    is_function: bool = True
    late: int = 0  # what lives on to the line's end: see `programs.DEATHS_ARE_EXACT`


@dataclass
class Line:
    """What is true of a line."""

    hits: int = 0
    consumed: int = 0
    peaked: int = 0
    open: int = 0
    before: int = 0
    highest: int = 0


class Raised(Exception):
    """The program's KeyError; the frames of its traceback live until it is handled."""

    def __init__(self):
        self.frames = []


class Model:
    """Runs the statements and knows the memory, in MB."""

    def __init__(self, functions):
        self.functions, self.lines, self.now = functions, defaultdict(Line), 0

    def begin(self, frame, at):
        self.end(frame)
        self.resume(frame, at)
        self.lines[at].hits += 1

    def resume(self, frame, at):
        frame.line, line = at, self.lines[at]
        if not line.open:
            line.before = line.highest = self.now
        line.open += 1

    def end(self, frame):
        if frame.line is not None:
            late, frame.late = frame.late, 0
            self.move(-late)
            line, frame.line = self.lines[frame.line], None
            line.open -= 1
            if not line.open:
                line.consumed += self.now - line.before
                line.peaked = max(line.peaked, line.highest - max(line.before, self.now))

    def move(self, size_mb):
        self.now += size_mb
        for line in self.lines.values():
            if line.open:
                line.highest = max(line.highest, self.now)

    def keep(self, frame, name, size_mb):
        self.drop(frame, name)
        frame.held[name] = size_mb

    def drop(self, frame, name):
        size_mb = frame.held.pop(name, 0)
        if frame.is_function and not DEATHS_ARE_EXACT:
            frame.late += size_mb
        else:
            self.move(-size_mb)

    def over(self, frame):
        self.move(-sum(frame.held.values()))
        frame.held.clear()

    def block(self, frame, nodes):
        for node in nodes:
            yield from self.step(frame, node)

    def step(self, frame, node):  # noqa: C901 - one branch a kind of statement
        """One statement; yields where the program does."""
        if node.kind == "try":
            yield from self.try_(frame, node)
            return
        if node.kind == "while":
            self.begin(frame, node.at - 1)
        self.begin(frame, node.at)
        if node.kind == "keep":
            self.move(node.size_mb)
            self.keep(frame, node.name, node.size_mb)
        elif node.kind == "two":
            self.move(node.size_mb)
            self.keep(frame, node.name, node.size_mb)
            self.move(2 * node.size_mb)
            self.move(-2 * node.size_mb)
        elif node.kind == "comprehension":
            for _ in range(node.count):
                self.move(node.size_mb)
            self.keep(frame, node.name, node.count * node.size_mb)
        elif node.kind == "drop":
            self.drop(frame, node.name)
        elif node.kind == "blip":
            self.move(node.size_mb)
            self.move(-node.size_mb)
        elif node.kind in ("for", "while"):
            for _ in range(node.count):
                if node.kind == "while":
                    self.begin(frame, node.at + 1)
                yield from self.block(frame, node.blocks[0])
                self.begin(frame, node.at)
        elif node.kind == "with":
            self.move(node.size_mb)
            try:
                yield from self.block(frame, node.blocks[0])
            finally:
                self.begin(frame, node.at)
                self.move(-node.size_mb)
        elif node.kind == "spread":
            self.begin(frame, node.at + 1)
            self.move(node.size_mb)
            self.begin(frame, node.at + 2)
            self.move(8)
            self.begin(frame, node.at)
            self.keep(frame, node.name, node.size_mb + 8)
        elif node.kind == "raise":
            raise Raised
        elif node.kind == "yield":
            self.end(frame)
            yield
            self.resume(frame, node.at)
        elif node.kind == "call":
            inner = Frame()
            yield from self.call(inner, self.block(inner, self.functions[node.name].blocks[0]))
        elif node.kind == "recursion":
            inner = Frame()
            yield from self.call(inner, self.recursion(inner, self.functions[node.name], node.count))
        elif node.kind == "drive":
            inner = Frame()
            for _ in self.call(inner, self.block(inner, self.functions[node.name].blocks[0])):
                yield from self.block(frame, node.blocks[0])
                self.begin(frame, node.at)
        else:
            assert node.kind == "pass"

    def try_(self, frame, node):
        self.begin(frame, node.at)
        try:
            yield from self.block(frame, node.blocks[0])
        except Raised as error:
            self.begin(frame, node.count)  # where `except` stands
            try:
                yield from self.block(frame, node.blocks[1])
            except Raised as another:  # whose context this one is
                another.frames += error.frames
                raise
            for dead in error.frames:
                self.over(dead)
        finally:
            yield from self.block(frame, node.blocks[2])

    def call(self, frame, steps):
        """From its first step to its end; its variables go when the caller's line is the open one."""
        try:
            yield from steps
        except Raised as error:
            self.end(frame)
            error.frames.append(frame)
            raise
        self.end(frame)
        self.over(frame)

    def recursion(self, frame, function, depth):
        self.begin(frame, function.at + 1)
        if depth:
            self.begin(frame, function.at + 2)
            inner = Frame()
            yield from self.call(inner, self.recursion(inner, function, depth - 1))
        yield from self.block(frame, function.blocks[0])


class Text:
    """Writes nodes down, and tells each where it stands."""

    def __init__(self):
        self.lines = []

    def add(self, line, indent):
        self.lines.append("    " * indent + line)
        return len(self.lines)

    def block(self, nodes, indent):
        for node in nodes:
            self.node(node, indent)

    def node(self, node, indent):
        name, size = node.name, node.size_mb
        heads = {
            "keep": f"{name} = Block({size})",
            "two": f"{name} = Block({size}); blip({2 * size})",
            "comprehension": f"{name} = [Block({size}) for _ in range({node.count})]",
            "drop": f"{name} = None",
            "blip": f"blip({size})",
            "for": f"for _ in range({node.count}):",
            "with": f"with held({size}):",
            "raise": "raise KeyError('made')",
            "yield": "yield",
            "call": f"{name}()",
            "recursion": f"{name}({node.count})",
            "drive": f"for _ in {name}():",
            "try": "try:",
            "pass": "pass",
            "spread": f"{name} = pair(",
            "def": f"def {name}():",
            "down": f"def {name}(depth):",
        }
        if node.kind == "while":
            counter = f"i{len(self.lines)}"
            self.add(f"{counter} = {node.count}", indent)
            node.at = self.add(f"while {counter}:", indent)
            self.add(f"{counter} -= 1", indent + 1)
            self.block(node.blocks[0], indent + 1)
            return
        node.at = self.add(heads[node.kind], indent)
        if node.kind == "spread":
            self.add(f"Block({size}),", indent + 1)
            self.add("Block(8),", indent + 1)
            self.add(")", indent)
        if node.kind == "down":
            self.add("if depth:", indent + 1)
            self.add(f"{name}(depth - 1)", indent + 2)
        if node.blocks:
            self.block(node.blocks[0], indent + 1)
        if node.kind == "try":
            node.count = self.add("except KeyError:", indent)
            self.block(node.blocks[1], indent + 1)
            if node.blocks[2]:
                self.add("finally:", indent)
                self.block(node.blocks[2], indent + 1)


SIZES = st.sampled_from([8, 16, 24])
NAMES = st.sampled_from(["x", "y"])


@st.composite
def blocks(draw, inside, depth, functions=()):
    """Statements for a function's, a generator's or the cell's own block."""
    kinds = ["keep", "two", "comprehension", "drop", "blip", "spread"]  # nothing that malloc may have kept
    if depth:
        kinds += ["for", "while", "with", "try"]
        kinds += [kind for kind, _ in functions]
    if "try" in inside:
        kinds += ["raise"]
    if "generator" in inside:
        kinds += ["yield"]
    nodes = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(kinds))
        node = Node(kind, draw(NAMES), draw(SIZES), draw(st.integers(0, 3)))
        if kind in ("call", "recursion", "drive"):
            node.name = draw(st.sampled_from([name for known, name in functions if known == kind]))
        if kind in ("for", "while", "with"):
            node.blocks = (draw(blocks(inside, depth - 1, functions)),)
        if kind == "drive":  # which an exception would close in the middle
            node.blocks = (draw(blocks(inside - {"try"}, depth - 1)),)
        if kind == "try":
            tried = draw(blocks(inside | {"try"}, depth - 1, functions))
            handled = draw(blocks(inside, depth - 1, functions))
            node.blocks = (tried, handled, draw(st.just([]) | blocks(inside, depth - 1, functions)))
        nodes.append(node)
        if kind == "raise":
            break
    return nodes


@st.composite
def stories(draw):
    """Functions, a recursion, a generator, and a cell that uses them."""
    functions = {
        "f": Node("def", "f", blocks=(draw(blocks(frozenset({"try"}), 1)),)),
        "down": Node("down", "down", blocks=(draw(blocks(frozenset(), 1)),)),
    }
    steps = [*draw(blocks(frozenset({"generator"}), 1)), Node("yield"), *draw(blocks(frozenset(), 0))]
    functions["steps"] = Node("def", "steps", blocks=(steps,))
    known = (("call", "f"), ("recursion", "down"), ("drive", "steps"))
    return functions, draw(blocks(frozenset(), 2, known))


@contextlib.contextmanager
def held(size_mb):
    block = Block(size_mb)
    try:
        yield
    finally:
        block.free()


def mb(size_bytes):
    return round(size_bytes / MB, 1)


def told_by(lines):
    return {
        line.lineno: (line.hits, mb(line.gen.consumed_bytes), mb(line.gen.peaked_bytes))
        for line in lines.result(lambda _: ("", 0))
    }


@pytest.mark.linux("only there is the truth known to the page")
@examples(40)
@given(stories())
def test_every_line_is_the_models(story):
    """Hits are exact, consumed and peaked within 2 MB, for every line that ran and no other."""
    functions, cell = story
    text = Text()
    text.block(functions.values(), 0)
    text.block(cell, 0)
    source = "\n".join(text.lines) + "\n"
    model, whole = Model(functions), Frame(is_function=False)
    for function in functions.values():
        model.begin(whole, function.at)
    failed = None
    try:
        for _ in model.block(whole, cell):
            pass
    except Raised:
        failed = KeyError
    model.end(whole)

    names = {"Block": Block, "blip": blip, "held": held, "pair": lambda *values: values}
    code = programs.compiled(source)
    with contextlib.suppress(KeyError) if failed else contextlib.nullcontext(), measured(of_cell) as (lines,):
        exec(code, names)
    names.clear()  # now, not when the garbage collector comes by in another example
    assert not lines.notes(lambda _: ("", 0))
    told = told_by(lines)
    true = {at: (line.hits, line.consumed, line.peaked) for at, line in model.lines.items()}
    for at, (hits, consumed_mb, peaked_mb) in true.items():
        near = at in told and told[at][0] == hits
        near = near and abs(told[at][1] - consumed_mb) <= 2 and abs(told[at][2] - peaked_mb) <= 2
        assert near, f"line {at}: {told.get(at)} instead of {true[at]}\n{numbered(source, told, true)}"
    assert told.keys() == true.keys(), numbered(source, told, true)


def numbered(source, told, true):
    return "\n".join(
        f"{at:3} {line:40} {told.get(at)} / {true.get(at)}" for at, line in enumerate(source.splitlines(), 1)
    )
