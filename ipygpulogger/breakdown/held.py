"""What the memory behind values is for: a module's parameters, an optimizer's state, gradients, tensors."""

from __future__ import annotations

import itertools
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..owners.exceptions import locals_of
from ..owners.user_code import is_shell_code
from ..runtime.classes import bases_of
from ..runtime.frames import walk_stack
from .places import is_users

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType, ModuleType

    from ..records.at_peak import Kind
    from .graph import Address, Graph, Graphs

_FRAMES = 8  # of the user's, in which names are looked up
_ITEMS = 64  # of one list, tuple or dict
_MODULES = 64  # among which the first parameter of a module is looked for


class Held(NamedTuple):
    """What a block of memory holds.

    Attributes:
        kind: As in `AtPeak`.
        name: The variable through which it was found; "" for none.
        computed: Whether autograd made it: a variable may hold it, and a graph keep it all the same.
    """

    kind: Kind
    name: str = ""
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
_ACTIVATION, _GRADIENT, _PARAMETER = Held("activations"), Held("gradients"), Held("parameters")


def merge(held: dict[Any, Held], more: dict[Any, Held]) -> None:
    """Add findings to others; of two for one address the surer kind stays, and a name where one has it."""
    for address, one in more.items():
        held[address] = surer(held.get(address), one)


def surer(one: Held | None, other: Held) -> Held:
    """Return the surer of two findings, with the name of the other one where it has none."""
    if one is None or one == other:
        return other
    first, second = (one, other) if one.rank <= other.rank else (other, one)
    return first if first.name or not second.name else first._replace(name=second.name)


def user_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the innermost frames of the user's code, from a frame outwards."""
    users = (one for one in walk_stack(frame) if is_users(one.f_code.co_filename) and not is_shell_code(one))
    return list(itertools.islice(users, _FRAMES))


def names_in(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield the variables of the user's code that runs, from a frame outwards."""
    for one in user_frames(frame):
        yield from locals_of(one)


class _Known(NamedTuple):
    """A module or an optimizer that was looked at.

    Attributes:
        value: The object.
        mark: How many states it had, an optimizer; where its first parameter was, a module.
        named: Whether its name was known then.
    """

    value: weakref.ref[Any]
    mark: tuple[int, Address | None]
    named: bool


class Values:
    """Tells what the memory behind values holds, without running the user's code.

    torch functions and dispatch modes must be off.

    Args:
        torch: The module.
        graphs: Reads tensors.
    """

    def __init__(self, torch: ModuleType, graphs: Graphs) -> None:
        self._graphs = graphs
        self._module, self._optimizer = torch.nn.Module, torch.optim.Optimizer
        self._kinds: dict[int, tuple[type, str]] = {}
        self._known: dict[int, _Known] = {}  # by id

    def of_graph(self, graph: Graph) -> dict[Address, Held]:
        """Return what a graph keeps."""
        held = dict.fromkeys(graph.saved, _ACTIVATION)
        for leaf in graph.leaves:
            self.of_tensor(held, "", leaf)
        return held

    def of_gradients(self, leaves: Iterable[Any], results: Iterable[Any]) -> dict[Address, Held]:
        """Return what a backward pass left behind.

        Args:
            leaves: The tensors that have gradients now.
            results: The gradients that the pass returned.
        """
        found = itertools.chain(map(self._graphs.gradient_of, leaves), results)
        return dict.fromkeys(itertools.chain.from_iterable(map(self._graphs.addresses_of, found)), _GRADIENT)

    def of_tensor(
        self, held: dict[Address, Held], name: str, tensor: Any, *, parameter: bool = False
    ) -> None:
        """Add what a tensor holds, and its gradient.

        Args:
            held: What it is added to.
            name: The variable through which the tensor was found; "" for none.
            tensor: The tensor.
            parameter: Whether it is known to be one, whatever its class.
        """
        graphs = self._graphs
        if parameter or graphs.is_parameter(tensor):
            one = Held("parameters", name) if name else _PARAMETER
        else:
            one = Held("variables", name, computed=not graphs.is_leaf(tensor))
        for address in graphs.addresses_of(tensor):
            held[address] = surer(held.get(address), one)
        gradient = graphs.gradient_of(tensor)
        if gradient is not None:
            one = Held("gradients", name) if name else _GRADIENT
            for address in graphs.addresses_of(gradient):
                held[address] = surer(held.get(address), one)

    def of_optimizer(self, optimizer: Any, name: str = "") -> dict[Address, Held]:
        """Return what an optimizer holds: its state, and its parameters with their gradients."""
        held: dict[Address, Held] = {}
        own, state = _attributes(optimizer), Held("optimizer state", name)
        for group in own.get("param_groups") or ():
            for parameter in group.get("params", ()) if type(group) is dict else ():
                if self._graphs.is_tensor(parameter):
                    self.of_tensor(held, "", parameter, parameter=True)
        pending: list[Any] = [own.get("state")]
        while pending:  # LBFGS keeps lists of tensors
            value = pending.pop()
            if isinstance(value, dict):
                pending += dict.values(value)
            elif type(value) in (list, tuple):
                pending += value
            elif self._graphs.is_tensor(value):
                for address in self._graphs.addresses_of(value):
                    held[address] = surer(held.get(address), state)
        return held

    def of_names(self, names: Iterable[tuple[str, Any]]) -> dict[Address, Held]:
        """Return what variables hold, modules and optimizers too, whether they are new or not."""
        held: dict[Address, Held] = {}
        for name, value in names:
            kind = self._kind(type(value))
            if kind:
                self._add(held, held, name, value, kind)
        return held

    def of_frames(self, frame: FrameType | None) -> tuple[dict[Address, Held], dict[Address, Held]]:
        """Return what the local variables of the user's functions hold, from a frame outwards.

        The first part is of variables that may refer to something else at any time. The second is of modules
        and optimizers that are new (`is_new`).
        """
        held: dict[Address, Held] = {}
        lasting: dict[Address, Held] = {}
        for name, value in names_in(frame):
            kind = self._kind(type(value))
            if kind:
                self._add(held, lasting, name, value, kind)
        return held, lasting

    def is_new(self, value: Any, name: str = "") -> bool:
        """Return whether there is reason to look at a module or an optimizer; none after the first time.

        There is again when a name is found for it, when a module was moved to a device or converted, and when
        an optimizer has more state.
        """
        own = _attributes(value)
        state = own.get("state")
        count = dict.__len__(state) if isinstance(state, dict) else 0
        mark = count, self._first_address(own) if "_parameters" in own else None
        known = self._known.get(id(value))
        if known is not None and known.mark == mark and known.value() is value and (known.named or not name):
            return False
        with suppress(TypeError):  # a class without weak references
            self._known[id(value)] = _Known(weakref.ref(value), mark, bool(name))
        return True

    def _first_address(self, own: dict[str, Any]) -> Address | None:
        """Return where the first parameter of a module is, from the module's attributes."""
        pending = [own]
        for _ in range(_MODULES):
            if not pending:
                break
            own = pending.pop()
            for tensor in (own.get("_parameters") or {}).values():
                if tensor is not None:
                    return self._graphs.address_of(tensor)
            inner = list((own.get("_modules") or {}).values())
            pending += [_attributes(one) for one in reversed(inner) if one is not None]
        return None

    def is_optimizer(self, kind: type) -> bool:
        """Return whether a class is of optimizers."""
        return self._kind(kind) == "optimizer"

    def _add(
        self, held: dict[Address, Held], lasting: dict[Address, Held], name: str, value: Any, kind: str
    ) -> None:
        if kind == "tensor":
            self.of_tensor(held, name, value)
        elif kind == "container":
            for one in list(value.values() if type(value) is dict else value) if len(value) <= _ITEMS else ():
                inner = self._kind(type(one))
                if inner and inner != "container":
                    self._add(held, lasting, name, one, inner)
        elif self.is_new(value, name) or lasting is held:  # `of_names` looks at all of them
            if kind == "module":
                self._of_module(lasting, name, value)
            else:
                merge(lasting, self.of_optimizer(value, name))

    def _of_module(self, held: dict[Address, Held], name: str, module: Any) -> None:
        """Add what a module holds, and the modules within it."""
        pending, seen = [module], {id(module)}
        while pending:
            own = _attributes(pending.pop())
            for table in ("_parameters", "_buffers"):
                for tensor in (own.get(table) or {}).values():
                    if self._graphs.is_tensor(tensor):
                        self.of_tensor(held, name, tensor)
            for one in (own.get("_modules") or {}).values():
                if one is not None and id(one) not in seen:
                    seen.add(id(one))
                    pending.append(one)

    def _kind(self, kind: type) -> str:
        """Return what values of a class are: "tensor", "container", "module", "optimizer"; "" for others."""
        known = self._kinds.get(id(kind))
        if known is None:
            bases = bases_of(kind)
            word = ""
            if kind in (list, tuple, dict):
                word = "container"
            elif self._module in bases:
                word = "module"
            elif self._optimizer in bases:
                word = "optimizer"
            elif any(base.__name__ == "TensorBase" for base in bases):
                word = "tensor"
            known = self._kinds[id(kind)] = kind, word
        return known[1]


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes, whatever its class says about them."""
    found = object.__getattribute__(value, "__dict__")
    return found if isinstance(found, dict) else {}
