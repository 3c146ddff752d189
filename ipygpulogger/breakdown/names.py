"""Which names hold what was alive at the peak: of a block the nearest.

The search begins at all names at once, ends when every block has a name, and visits a number of objects in
proportion to the blocks. So it takes the same time whatever is imported.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any, NamedTuple

from ..allocator.graph import Address, Graphs
from ..allocator.places import is_users
from ..owners.attribution import GRAPH, Root
from ..owners.memory_blocks import ArrayReaders, read, readers_of
from ..owners.referents import (
    LOCALS_LEAVE_A_COPY,
    TICK,
    function_name,
    in_pieces,
    is_function,
    locals_of,
    referents_of,
)
from ..owners.roots import LAST, roots_at, users_globals
from ..records.explained import Kind
from ..runtime.objects import bases_of, walk_stack
from ..runtime.shell import is_shell_code
from ..sources import Holding
from ..sources.torch import tensors
from ..sources.torch.state import module

_OBJECTS, _EACH = 1024, 16  # objects that are visited beyond the names' own values, and for each block more
_AT_ONCE = 64  # of them from one object, or as much time, before others have their turn

_Pending = tuple[str, str, "Iterator[Any]"]  # a name, what stands before the variables of its frames, values


class Search:
    """Finds what names hold, the nearest first; none of the user's code runs."""

    def __init__(self, shell: Any, frame: FrameType | None, readers: ArrayReaders, blocks: int) -> None:
        self._roots, closed = roots_at(user_frames(frame), shell, sys.exc_info()[1])
        self._readers, self._left = readers, _OBJECTS + _EACH * blocks
        self._module = getattr(getattr(module(), "nn", None), "Module", None)
        self._visited = {id(one): one for one in closed}  # kept, so that no id is used twice
        self._kinds: dict[int, tuple[type, ArrayReaders, Callable[[Any], Iterable[Any]] | None, bool]] = {}
        self._queue: deque[_Pending] = deque()

    def found(self) -> Iterator[tuple[str, Any, Holding]]:
        """Yield what is found: a name, a value, its memory; first all that the names themselves refer to."""
        for root in self._roots:
            yield from self._visit("", "", root)
        queue = self._queue
        queue.append(("", "", users_globals()))
        while queue and self._left > 0:
            name, label, values = queue.popleft()
            turn_ends = self._left - _AT_ONCE
            with suppress(RuntimeError):  # another thread changed the container
                for value in values:
                    self._left -= _AT_ONCE if value is TICK else 1
                    yield from self._visit(name, label, value)
                    if self._left <= turn_ends:
                        queue.append((name, label, values))
                        break

    def _visit(self, name: str, label: str, value: Any) -> Iterator[tuple[str, Any, Holding]]:
        if type(value) is Root:
            name, value, label = value.name, value.value, value.label or value.name
        kind = type(value)
        # There are thousands of functions where a library is imported with a star.
        is_librarys = kind is FunctionType and not is_users(value.__code__.co_filename)
        if id(value) in self._visited or is_librarys:
            return
        self._visited[id(value)] = value
        queue = self._queue
        if kind is TracebackType:
            frame, where = value.tb_frame, f"{label}: {function_name(value.tb_frame)}"
            own = locals_of(frame) if is_function(frame) and not is_shell_code(frame) else []
            found = [Root(f"{where}.{variable}", "traceback", one, label) for variable, one in own]
            queue.append((name, label, iter([*found, value.tb_next])))
            return
        _, readers, referents, is_module = self._kinds.get(id(kind)) or self._learn(kind)
        if is_module:  # however deep they are
            queue.append((name, label, tensors_of(value)))
        holding = read(value, readers)
        if holding is not None:
            yield name, value, holding
            if type(holding.parts) is tuple:  # a gradient goes with its parameter
                for part in holding.parts:
                    yield from self._visit(name, label, part)
            else:
                queue.append((name, label, in_pieces(iter(holding.parts))))
            if holding.graph is not None:
                queue.append((name.removesuffix(GRAPH) + GRAPH, label, iter((holding.graph,))))
        if referents is not None:
            queue.append((name, label, iter(referents(value))))

    def _learn(self, kind: type) -> Any:
        is_module = self._module is not None and self._module in bases_of(kind)
        how = self._kinds[id(kind)] = kind, readers_of(kind, self._readers), referents_of(kind), is_module
        return how


Labels = dict["Address", "Label"]


def names_at_end(shell: Any, frame: FrameType | None, wanted: Iterable[Address]) -> Labels:
    """Return what names hold now, by address."""
    torch, missing = module(), set(wanted)
    if torch is None or not missing:
        return {}
    reader = _Reader(torch)
    names: dict[Address, str] = {}
    # The code of a tensor's subclass, and that of a mode, is the user's.
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        for name, value, _ in Search(shell, frame, [reader.holding], len(missing)).found():
            for address in reader.graphs.addresses_of(value):
                names.setdefault(address, name.removeprefix(f"{LAST}: "))  # "step.act", a function's variable
                missing.discard(address)
            if not missing:
                break
    add(reader.labels, [at for at, name in names.items() if name.endswith(GRAPH)], Label("activations"))
    return {address: reader.labels[address]._replace(name=name) for address, name in names.items()}


class _Reader:
    """Reads the memory behind values for a search, and labels what it is for, without names."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch, self._values = torch, Values(torch)
        self.graphs = self._values.graphs
        self.labels: Labels = {}

    def may_hold(self, kind: type) -> bool:
        """Return whether values of a class are tensors, nodes of graphs or optimizers."""
        return tensors.may_hold(kind, self._torch) or issubclass(kind, self._values.optimizer)

    def holding(self, value: Any) -> Holding | None:
        """Return the memory behind a value; torch functions and dispatch modes must be off."""
        if issubclass(type(value), self._values.optimizer):
            self._values.of_optimizer(self.labels, "", value)
            return None
        found = tensors.holding(value, self._torch)
        if self.graphs.is_tensor(value):
            self._values.of_tensor(self.labels, "", value)
        elif found is not None:
            for part in found.parts:
                add(self.labels, self.graphs.addresses_of(part), Label("activations"))
        return found


_FRAMES = 8  # of the user's, in which names are looked up
_ITEMS = 64  # of one list, tuple or dict


class Label(NamedTuple):
    """What a block of memory holds."""

    kind: Kind  # as in `AtPeak`
    name: str = ""  # the variable through which it was found; "" for none
    # Whether autograd made it: a variable may hold it, and a graph keep it all the same.
    computed: bool = False

    @property
    def rank(self) -> int:
        """Its rank among several findings, of which the lowest is right."""
        return _RANKS[self.kind] + 2 * self.computed


_RANKS = {
    "parameters": 0,
    "optimizer state": 1,
    "gradients": 2,
    "variables": 3,
    "activations": 4,
    "temporaries": 9,
    "before": 9,
}


def surer(one: Label | None, other: Label) -> Label:
    """Return the surer of two findings, with the name of the other one where it has none."""
    if one is None or one == other:
        return other
    first, second = (one, other) if one.rank <= other.rank else (other, one)
    return first if first.name or not second.name else first._replace(name=second.name)


def add(labels: Labels, addresses: Iterable[Address], one: Label) -> None:
    """Add a finding at addresses; of two for one the surer kind stays, and a name where one has it."""
    for address in addresses:
        labels[address] = surer(labels.get(address), one)


def user_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the innermost frames of the user's code, from a frame outwards, whose variables can be read.

    Of a function that is traced, up to Python 3.12, reading them leaves a copy that cannot be emptied: the
    interpreter fills it again at the next line. Variables that are deleted later would stay alive in it.
    """
    traced = LOCALS_LEAVE_A_COPY and sys.gettrace() is not None
    users = (one for one in walk_stack(frame) if _is_users(one.f_code.co_filename) and not is_shell_code(one))
    return [one for one in itertools.islice(users, _FRAMES) if not (traced and is_function(one))]


def _is_users(file: str) -> bool:
    return is_users(file) or file.startswith("<timed ")  # the body of `%%time`


class Values:
    """Tells what the memory behind values holds; torch functions and dispatch modes must be off."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.graphs: Graphs = Graphs(torch)
        self._is_leaf: Callable[[Any], bool] = torch._C.TensorBase.is_leaf.__get__
        self.optimizer: type[Any] = torch.optim.Optimizer
        self._lasting = self.optimizer, torch.nn.Module
        # By id, and whether a name was known, what was looked at, and how much of it there was.
        self._known: dict[tuple[int, bool], tuple[weakref.ref[Any], int]] = {}

    def of_tensor(self, labels: Labels, name: str, tensor: Any, *, parameter: bool = False) -> None:
        """Add what a tensor holds that a variable led to, or none (""), and its gradient."""
        graphs = self.graphs
        if parameter or graphs.is_parameter(tensor):
            one = Label("parameters", name)
        else:
            one = Label("variables", name, computed=not self._is_leaf(tensor))
        add(labels, graphs.addresses_of(tensor), one)
        add(labels, graphs.addresses_of(graphs.gradient_of(tensor)), Label("gradients", name))

    def of_optimizer(self, labels: Labels, name: str, optimizer: Any) -> None:
        """Add what an optimizer holds: its state, and its parameters with their gradients."""
        own = _attributes(optimizer)
        for group in own.get("param_groups") or ():
            for parameter in group.get("params", ()) if type(group) is dict else ():
                if self.graphs.is_tensor(parameter):
                    self.of_tensor(labels, "", parameter, parameter=True)
        pending: list[Any] = [own.get("state")]
        while pending:  # LBFGS keeps lists of tensors
            value = pending.pop()
            if isinstance(value, dict):
                pending += dict.values(value)
            elif type(value) in (list, tuple):
                pending += value
            else:
                add(labels, self.graphs.addresses_of(value), Label("optimizer state", name))

    def of_names(self, labels: Labels, lasting: Labels, names: Iterable[tuple[str, Any]]) -> None:
        """Add what variables hold; to `lasting` what modules and optimizers do that are new (`is_new`)."""
        for name, value in names:
            kind = type(value)
            if kind is list or kind is tuple or kind is dict:  # by identity: `==` may be a metaclass's own
                inner = list(value.values() if kind is dict else value) if len(value) <= _ITEMS else []
            else:
                inner = [value]
            for one in inner:
                if self.graphs.is_tensor(one):
                    self.of_tensor(labels, name, one)
                elif issubclass(type(one), self._lasting) and self.is_new(one, name):
                    self._of_lasting(lasting, name, one)

    def is_new(self, value: Any, name: str = "") -> bool:
        """Return whether a module or an optimizer was not looked at yet, or had another number of states."""
        state = _attributes(value).get("state")
        count = dict.__len__(state) if isinstance(state, dict) else 0
        key = id(value), bool(name)
        known = self._known.get(key)
        if known is not None and known[0]() is value and known[1] == count:
            return False
        with suppress(TypeError):  # a class without weak references
            self._known[key] = weakref.ref(value), count
        return True

    def _of_lasting(self, labels: Labels, name: str, value: Any) -> None:
        if issubclass(type(value), self.optimizer):
            self.of_optimizer(labels, name, value)
            return
        for tensor in tensors_of(value):
            if self.graphs.is_tensor(tensor):
                self.of_tensor(labels, name, tensor)


def tensors_of(module: Any) -> Iterator[Any]:
    """Yield what the tables of a module, and of the modules within it, hold as parameters and buffers."""
    pending, seen = [module], {id(module)}
    while pending:
        own = _attributes(pending.pop())
        for table in ("_parameters", "_buffers"):
            yield from list((own.get(table) or {}).values())
        for one in list((own.get("_modules") or {}).values()):
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                pending.append(one)


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes, whatever its class says about them."""
    found = object.__getattribute__(value, "__dict__")
    return found if isinstance(found, dict) else {}
