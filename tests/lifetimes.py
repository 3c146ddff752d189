"""A program of cells that makes and drops objects of every kind, and tells which of them live at each moment.

It runs once without the extension and once under each option, each time in a process of its own. One
interpreter imports everything, and forks for each run.

As a program: ``lifetimes.py plain|torch`` runs the ways that it reads as JSON, and prints a line for each.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
import weakref
from pathlib import Path

_MODULE = """
class Kept:
    cache = {}
    def method(self): return self
def helper(value=Kept()): return value
REGISTRY = [Kept(), helper]
"""

MAKE = """
import abc, collections, dataclasses, enum, functools, importlib, typing

class Meta(type):
    registry = Payload()
    def __eq__(cls, other): return cls is other
    __hash__ = type.__hash__

class Kind(metaclass=Meta):
    cache = {"big": Payload()}
    def method(self): return self.cache
    @functools.lru_cache
    def remembers(self): return Payload()
    @staticmethod
    def static(): return Payload

class Derived(Kind): own = bytearray(2_000_000)
class Slots:
    __slots__ = "value", "__weakref__"
class Color(enum.Enum):
    RED = 1
    def paint(self): return self
class Failure(Exception):
    pass
class Abstract(abc.ABC):
    @abc.abstractmethod
    def do(self): ...
class Concrete(Abstract):
    def do(self): return Payload()
class Rows(list): pass
class Table(dict): pass
class Text(str): pass
class Array(np.ndarray): pass
class Buffer(bytearray): pass
Generic = typing.TypeVar("Generic")
class Box(typing.Generic[Generic]):
    inner: Generic
Pair = collections.namedtuple("Pair", "left right")

@dataclasses.dataclass
class Point:
    x: object = None

def function(given=Payload(), *, more=Kind()): return given
function.attribute = Payload()

def enclosing():
    payload = Payload()
    def closure(): return payload
    return closure, payload

@functools.lru_cache(maxsize=None)
def cached(key): return Payload()

@functools.singledispatch
def dispatched(value): return Payload()
@dispatched.register
def _of_kind(value: Slots): return value

def generating():
    inside = Payload()
    track("inside a generator", inside)
    yield inside
    yield 1

async def coroutine():
    return Payload()

closure, enclosed = enclosing()
track("enclosed", enclosed); del enclosed
generator = generating(); next(generator)
waiting = coroutine()
made_by_type = type("Made", (Kind,), {"cache": Payload()})
executed = {}
exec("class Executed:\\n    cache = Payload()\\n    def __call__(self): return self", globals(), executed)
partial = functools.partial(function, Payload())
key = Slots(); key.value = Payload()
cached(key)
dispatched(key)
kind, derived, point, box = Kind(), Derived(), Point(Payload()), Box()
kind.remembers()
rows, table, text = Rows([Payload()] * 9000), Table(a=Payload()), Text("x" * 70_000)
array = np.ones(400_000).view(Array)
buffer = Buffer(2_000_000)
objects = np.array([Kind(), Payload(), None], dtype=object)
pair = Pair(Payload(), Kind())
failure = Failure(Payload())
cycle = Kind(); cycle.itself = [cycle]
concrete = Concrete()
callback = lambda value, kept=Payload(): kept
proxy = type("Proxy", (), {"__class__": property(lambda self: dict)})()
for name, value in {
    "Meta": Meta, "Meta.registry": Meta.registry, "Kind": Kind, "Kind.cache": Kind.cache["big"],
    "Derived": Derived, "Slots": Slots, "Color": Color, "Color.RED": Color.RED, "Failure": Failure,
    "Abstract": Abstract, "Concrete": Concrete, "Rows": Rows, "Table": Table, "Text": Text, "Array": Array,
    "Buffer": Buffer, "Box": Box, "Pair": Pair, "Point": Point, "function": function,
    "default": function.__defaults__[0], "attribute": function.attribute, "enclosing": enclosing,
    "closure": closure, "cached": cached, "cached value": cached(key), "dispatched": dispatched,
    "generating": generating, "generator": generator, "coroutine": waiting, "made by type": made_by_type,
    "of made": made_by_type.cache, "executed": executed["Executed"],
    "of executed": executed["Executed"].cache, "partial": partial, "of partial": partial.args[0],
    "key": key, "kind": kind, "derived": derived, "point": point, "box": box, "rows": rows, "table": table,
    "of table": table["a"], "text": text, "array": array, "array's base": array.base, "buffer": buffer,
    "object array": objects[0], "of pair": pair.left, "failure": failure, "of failure": failure.args[0],
    "cycle": cycle, "concrete": concrete, "callback": callback, "of callback": callback.__defaults__[0],
    "proxy": proxy, "class of proxy": type(proxy), "remembered": kind.remembers(), "TypeVar": Generic,
    "code": function.__code__, "code of a cell's lambda": callback.__code__,
}.items():
    track(name, value)
del name, value
"""

DROP = """
del Meta, Kind, Derived, Slots, Color, Failure, Abstract, Concrete, Rows, Table, Text, Array, Buffer, Box
del Generic, Pair, Point, function, enclosing, cached, dispatched, _of_kind, generating, coroutine
del closure, generator, made_by_type, executed, partial, key, kind, derived, point, box, rows, table, text
del array, buffer, objects, pair, failure, cycle, concrete, callback, proxy
waiting.close(); del waiting
"""

WITHIN = """
def steps():
    class Local:
        cache = Payload()
    def inner(): return Local
    big = np.ones(400_000).view(type("View", (np.ndarray,), {}))
    local = Local()
    for name, value in {"Local": Local, "Local.cache": Local.cache, "inner": inner, "local": local,
                        "View": type(big), "big": big, "inner's code": inner.__code__}.items():
        track(name, value)
    del value
    local = None
    note("rebound in a function")
    del big
    note("deleted in a function")
    other = [inner() for _ in range(3)]
    del other, inner
    note("deleted once more")
    return [i * 2 for i in range(10)]

steps()
note("returned")
del steps
"""

THREAD = """
import threading
def on_a_thread():
    class Local(threading.local): pass
    local = Local(); local.kept = Payload()
    code = compile("def inner(x=Payload()): return x\\ninner()", "<made>", "exec")
    names = {"Payload": Payload}
    exec(code, names)
    for name, value in {"thread's class": Local, "thread's local": local, "of a local": local.kept,
                        "made code": code, "made function": names["inner"]}.items():
        track(name, value)
    del value
    note("made on a thread")
    del local, Local, code, names
    note("dropped on a thread")
thread = threading.Thread(target=on_a_thread)
thread.start(); thread.join()
track("thread", thread), track("target", on_a_thread)
del thread, on_a_thread
"""

FAIL = """
def failing():
    class Caught:
        cache = Payload()
    caught = Caught()
    track("Caught", Caught), track("caught", caught)
    raise ValueError(caught)
try:
    failing()
except ValueError as error:
    note("handled")
note("after it")
del failing
"""

FAILS = FAIL.replace("del failing", "failing()")

MODULE = """
import importlib, lifetimes_module
track("module's class", lifetimes_module.Kept), track("module's instance", lifetimes_module.REGISTRY[0])
track("module's function", lifetimes_module.helper), track("module", lifetimes_module)
"""

TORCH = """
import torch
from torch import nn
class Net(nn.Module):
    weights = torch.ones(500_000, device=DEVICE)
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(300, 300).to(DEVICE)
    def forward(self, x): return self.layer(x)
class Sub(torch.Tensor): pass
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.kept = Payload(); return x * 2
    @staticmethod
    def backward(ctx, grad): return grad
class Own(torch.optim.SGD): pass
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.ones(300)
net, sub = Net(), torch.ones(1000, device=DEVICE).as_subclass(Sub)
parameter = nn.Parameter(sub)
optimizer = Own(net.parameters(), lr=0.1, momentum=0.9)
hooked = net.register_forward_hook(lambda *_: None)
loader = torch.utils.data.DataLoader(Data())
loss = Double.apply(net(next(iter(loader)).to(DEVICE))).sum()
loss.backward(); optimizer.step()
for name, value in {"Net": Net, "Net.weights": Net.weights, "net": net, "Sub": Sub, "sub": sub, "Own": Own,
                    "Double": Double, "optimizer": optimizer, "Data": Data, "loader": loader,
                    "loss": loss, "kept by a node": loss.grad_fn.next_functions[0][0].kept, "weight": net.layer.weight,
                    "gradient": net.layer.weight.grad, "parameter": parameter}.items():
    track(name, value)
del name, value
"""

TORCH_WITHIN = """
def train():
    model = nn.Linear(400, 400).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    class Loss(nn.Module):
        def forward(self, x): return x.mean()
    criterion = Loss()
    for _ in range(2):
        out = criterion(model(torch.ones(10, 400, device=DEVICE)))
        optimizer.zero_grad()
        out.backward(); optimizer.step()
    track("model", model), track("Loss", Loss), track("out", out), track("grads", model.weight.grad)
    del out
    note("the loss deleted")
    optimizer.zero_grad()
    note("gradients dropped")
    del model, optimizer
    note("the model deleted")
train()
note("trained")
"""

TORCH_DROP = """
hooked.remove()
del Net, Sub, Double, Own, Data, net, sub, parameter, optimizer, hooked, loader, loss
"""


class Payload:
    """What others keep, and memory of its own."""

    def __init__(self):
        self.memory = bytearray(1 << 20)


class Lives:
    """Which of the tracked objects live: as they are, and after a collection."""

    def __init__(self):
        self._tracked, self._memory = [], lambda: 0
        self.notes = []

    def track(self, name, value):
        """Remember an object weakly."""
        self._tracked.append((name, weakref.ref(value)))

    def note(self, moment):
        """Note what lives now."""
        self.notes.append([moment, self._living(), self._device_bytes()])

    def note_collected(self, moment):
        """Note what lives after a collection, which the user's code asks for."""
        self.note(moment)
        gc.collect()
        self.note(f"{moment}, collected")

    def _living(self):
        seen, found = {}, []
        for name, reference in self._tracked:
            number = seen[name] = seen.get(name, 0) + 1
            if reference() is not None:
                found.append(f"{name} {number}")
        return found

    def _device_bytes(self):
        torch = sys.modules.get("torch")
        return torch.cuda.memory_allocated() if torch and torch.cuda.is_initialized() else 0


def program(*, torch):
    """Yield the cells; None where the user's code asks for a collection."""
    for _ in range(2 if torch else 3):  # the same cells again
        yield MAKE
        yield None
        if torch:
            yield TORCH
            yield TORCH_WITHIN
            yield None
        yield WITHIN
        yield THREAD
        yield FAIL
        yield FAILS
    yield "pass"
    yield MODULE
    yield f"{MODULE}\nreloaded = importlib.reload(lifetimes_module); del reloaded"
    yield "import sys; del sys.modules['lifetimes_module'], lifetimes_module"
    yield None
    yield DROP
    if torch:
        yield TORCH_DROP
    yield "note('dropped')"
    yield None
    yield "pass"
    yield None


# -- the ways --------------------------------------------------------------------------------------


class Way:
    """One option: what is done before the program, to each cell, after each cell, and before the drops."""

    def __init__(self, shell, given):
        self.shell = shell
        self.start = given.get("start", ())
        self.prefix = given.get("prefix", "")
        self.around = given.get("around", "")
        self.after = given.get("after", ())
        self.before_drop = given.get("before_drop", ())

    def cell(self, source):
        """Return a cell's code under this option."""
        if self.around == "lines":
            self.shell.user_ns["_code"] = source
            return "measure_lines(report=False)(lambda: exec(_code, globals()))()"
        if self.around:
            inner = "\n".join(f"    {line}" for line in source.splitlines())
            return f"with {self.around}:\n{inner}"
        return f"{self.prefix}\n{source}" if self.prefix else source


def run(given, *, torch):
    """Run the program one way; return the notes."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    import ipygpulogger

    gc.disable()  # what is dropped in a cycle lives until a collection that somebody asks for
    lives = Lives()
    folder = tempfile.mkdtemp()
    Path(folder, "lifetimes_module.py").write_text(_MODULE)
    sys.path.insert(0, folder)
    config = Config(HistoryManager={"enabled": False})
    shell = InteractiveShell.instance(config=config, ipython_dir=folder)
    shell.user_ns.update(
        Payload=Payload, track=lives.track, note=lives.note, collect=lives.note_collected, np=sys.modules["numpy"],
        DEVICE="cuda" if torch else "cpu", FOLDER=folder, ipygpulogger=ipygpulogger,
        measure=ipygpulogger.measure, measure_lines=ipygpulogger.measure_lines,
    )  # fmt: skip
    way = Way(shell, given)

    def cell(source, *, fails=False):
        assert shell.run_cell(source, store_history=True).success != fails, source

    for source in way.start:
        cell(source)
    for number, source in enumerate(program(torch=torch)):
        if source is None:
            cell(f"collect('moment {number}')")
            continue
        if source is DROP:
            for one in way.before_drop:
                cell(one)
        cell(way.cell(source), fails=source is FAILS)
        lives.notes.append([f"after cell {number}", lives._living(), lives._device_bytes()])
        for one in way.after:
            cell(one)
    return lives.notes


def outcomes(ways, env, *, torch=False):
    """Run the program each way, in a process of its own; return the notes by way."""
    lane = "torch" if torch else "plain"
    done = subprocess.run(
        [sys.executable, __file__, lane], input=json.dumps(ways), env=env, stdout=-1, text=True, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {name: notes for one in found for name, notes in one.items()}


def _main():
    lane = sys.argv[1]
    warnings.simplefilter("ignore")  # of a coroutine that was never awaited
    for name in (
        "numpy",
        "IPython.core.interactiveshell",
        *(["torch.utils.data"] if lane == "torch" else []),
    ):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for name, given in json.load(sys.stdin).items():
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said):
                    notes = run(given, torch=lane == "torch")
                sys.stdout.write(json.dumps({name: notes}) + "\n")
                sys.stdout.flush()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"{name} failed")


if __name__ == "__main__":
    _main()
