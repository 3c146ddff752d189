"""Which names hold what was alive at the peak, and what that memory is for."""

from __future__ import annotations

import itertools
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..allocator.graph import Graphs
from ..allocator.places import is_users
from ..owners.attribution import GRAPH
from ..owners.referents import LOCALS_LEAVE_A_COPY, is_function
from ..owners.roots import LAST, roots_at
from ..owners.walk import walk
from ..runtime.objects import walk_stack
from ..runtime.shell import is_shell_code
from ..sources.torch import tensors
from ..sources.torch.state import module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType, ModuleType

    from ..allocator.graph import Address, Graph
    from ..owners.memory_blocks import ArrayReaders
    from ..records.explained import Kind
    from ..sources import Holding

Labels = dict["Address", "Label"]
_BUDGET_S = 0.5  # of the walk after each recorded cell


def names_at_end(shell: Any, frame: FrameType | None) -> Labels:
    """Return what names hold now of CUDA's memory, by address."""
    torch = module()
    if torch is None:
        return {}
    values = Values(torch)
    labels = values.labels
    names: dict[Address, str] = {}
    # The code of a tensor's subclass, and that of a mode, is the user's.
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        for (device, address), name in names_of_blocks(shell, frame, [values.holding]).items():
            if device.startswith("cuda:"):
                at = int(device.partition(":")[2]), address
                names[at] = name.removeprefix(f"{LAST}: ")  # "step.act", a function's variable
    add(labels, [at for at, name in names.items() if name.endswith(GRAPH)], Label("activations"))
    return {at: labels[at]._replace(name=name) for at, name in names.items() if at in labels}


def names_of_blocks(shell: Any, frame: FrameType | None, readers: ArrayReaders) -> dict[tuple[str, int], str]:
    """Return the names to which blocks are attributed, by device and address."""
    roots, closed = roots_at(shell, sys.exc_info()[1], user_frames(frame))
    found = walk(roots, readers, closed=closed, budget_s=_BUDGET_S)
    return {
        key: name
        for (name, device, _), sizes in found.blocks.items()
        for key in sizes
        if type(key) is tuple and key[0] == device and type(key[1]) is int
    }


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
    """Tells what the memory behind values holds, without running the user's code.

    torch functions and dispatch modes must be off.
    """

    def __init__(self, torch: ModuleType) -> None:
        self.torch, self.graphs = torch, Graphs(torch)
        self._lasting = torch.optim.Optimizer, torch.nn.Module
        # By id, and whether a name was known, what was looked at, and how much of it there was.
        self._known: dict[tuple[int, bool], tuple[weakref.ref[Any], int]] = {}
        self.labels: Labels = {}  # what the memory behind values is for that a walk read, without names

    def may_hold(self, kind: type) -> bool:
        """Return whether values of a class are tensors, nodes of graphs or optimizers."""
        return tensors.may_hold(kind, self.torch) or self._is_optimizer(kind)

    def holding(self, value: Any) -> Holding | None:
        """Return the memory behind a value, as a reader of a walk; it is labelled meanwhile."""
        if self._is_optimizer(type(value)):
            self.of_optimizer(self.labels, "", value)
            return None
        found = tensors.holding(value, self.torch)
        if self.graphs.is_tensor(value):
            self.of_tensor(self.labels, "", value)
        elif found is not None:
            for part in found.parts:
                add(self.labels, self.graphs.addresses_of(part), Label("activations"))
        return found

    def of_graph(self, labels: Labels, graph: Graph) -> None:
        """Add what a graph keeps."""
        add(labels, graph.saved, Label("activations"))
        for leaf in graph.leaves:
            self.of_tensor(labels, "", leaf)

    def of_gradients(self, labels: Labels, leaves: Iterable[Any], results: Iterable[Any]) -> None:
        """Add the gradients that a backward pass left in tensors, and those that it returned."""
        for gradient in itertools.chain(map(self.graphs.gradient_of, leaves), results):
            add(labels, self.graphs.addresses_of(gradient), Label("gradients"))

    def of_tensor(self, labels: Labels, name: str, tensor: Any, *, parameter: bool = False) -> None:
        """Add what a tensor holds that a variable led to, or none (""), and its gradient."""
        graphs = self.graphs
        if parameter or graphs.is_parameter(tensor):
            one = Label("parameters", name)
        else:
            one = Label("variables", name, computed=not graphs.is_leaf(tensor))
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
        """Add what variables hold; to `lasting` what modules and optimizers do that are new (`is_new`).

        The other variables may refer to something else at any time.
        """
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

    def _is_optimizer(self, kind: type) -> bool:
        return issubclass(kind, self._lasting[0])

    def _of_lasting(self, labels: Labels, name: str, value: Any) -> None:
        if self._is_optimizer(type(value)):
            self.of_optimizer(labels, name, value)
            return
        for tensor in _tensors_of(value):
            if self.graphs.is_tensor(tensor):
                self.of_tensor(labels, name, tensor)


def _tensors_of(module: Any) -> Iterator[Any]:
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
