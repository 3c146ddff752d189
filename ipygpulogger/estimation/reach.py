"""What takes part in a function: the tensors, and the containers that it may change, put back as they were.

Looked through are the function's arguments, what it closes over, the globals that its code names, and what
these hold; later each module that is called and each optimizer that makes a step, wherever it lives. No
figure depends on what is found from the function: torch itself shows what takes part (`FakeMap.mode`).
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from ..allocator.places import is_users
from ..runtime.objects import is_made_in_python, nested_code
from .restored import Restored, is_generator, items_of

_LEAVES = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type(...)),
    *(types.BuiltinFunctionType, types.CodeType, types.FrameType, types.TracebackType),
)
# What Python's collector knows all about: these cannot be changed, or what they hold cannot be put back.
_OPAQUE = (
    *(tuple, frozenset, types.MethodType, types.MappingProxyType, types.GeneratorType, partial),
    *(classmethod, staticmethod, property),
)
# Objects of these packages hold no tensors of a training step, and their state is their own.
_STRANGERS = (
    "IPython ipykernel ipywidgets traitlets zmq logging tqdm matplotlib pandas wandb tensorboard ipygpulogger"
)
_HOLDERS = frozenset(("collections", "types", "functools", "argparse"))  # of the standard library


class Arguments(NamedTuple):
    """What a function is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True, eq=False)
class RealTensor:
    """A tensor of the user's that takes part: the only reference that an estimate has to it."""

    tensor: Any
    name: str  # what it was reached through
    kind: str  # a kind of `AtPeak`
    of_model: bool  # whether `.to(device)` of the model would move it, the state of its optimizer included
    size: int | None = None  # the leading dimension of its fake; None for its own
    fake: Callable[[], Any] = lambda: None  # returns its fake; None if nothing holds it any more
    kept: Any = None  # its fake, unless something else of torch's holds that

    def is_released(self) -> bool:
        """Return whether nothing else holds the tensor any more; functions of torch must be off."""
        return self.references() <= _ALONE and self.tensor._use_count() == 1

    def references(self) -> int:
        """Return how many references there are to the tensor, these here included."""
        return sys.getrefcount(self.tensor)


_ALONE = RealTensor(object(), "", "", of_model=False).references()


class Reach:
    """What takes part."""

    def __init__(self, torch: ModuleType, sizes: Mapping[int, int]) -> None:
        from torch._subclasses.fake_tensor import FakeTensor

        self._torch, self._fake, self._sizes = torch, FakeTensor, sizes
        self._is_wrapper = torch._C._functorch.is_functorch_wrapped_tensor  # of `torch.func`
        self.held: dict[int, RealTensor] = {}  # the tensors, by identity
        # What is put back at the end.
        self.restored: Restored = Restored(
            lambda value: self.of(value) if self.is_real(value) else value,
            lambda held: held.tensor if type(held) is RealTensor else held,
        )
        self._seen: dict[int, Any] = {}
        self._named: set[tuple[int, str]] = set()
        self._pending: deque[tuple[Any, str]] = deque()
        self._later: deque[tuple[Any, str]] = deque()  # optimizers: parameters are named after their module

    def walk(self, fn: Any, arguments: Arguments) -> None:
        """Look through all that a call of the function reaches."""
        self.restored.surroundings(self._torch)
        for _, name, value in named_arguments(fn, arguments):
            self.meet(value, name)
        self.meet(fn)

    def meet(self, value: Any, name: str = "") -> None:
        """Look through an object that takes part, unless that is done."""
        with self._torch._C.DisableTorchFunction():
            self._add(value, name)
            while self._pending or self._later:
                self._visit(*(self._pending or self._later).popleft())

    def meet_module(self, module: Any) -> None:
        """Look through a module, unless the function has made it: then its tensors are fake."""
        if id(module) in self._seen or "_modules" not in vars(module):  # which is not complete yet
            return
        with self._torch._C.DisableTorchFunction():
            tensors = [*module.parameters(), *module.buffers()]
        if tensors and all(map(self.is_real, tensors)):
            self.meet(module)

    def is_real(self, value: Any) -> bool:
        """Return whether something is a tensor of the user's."""
        kind = type(value)
        if not issubclass(kind, self._torch.Tensor) or issubclass(kind, self._fake):
            return False
        return not self._is_wrapper(value)

    def of(self, tensor: Any, name: str = "") -> RealTensor:
        """Return what is known of a tensor, which need not have been reached."""
        if id(tensor) not in self.held:
            with self._torch._C.DisableTorchFunction():
                self._visit_tensor(tensor, name)
        known = self.held[id(tensor)]
        known.name = known.name or name
        return known

    @property
    def has_accelerator(self) -> bool:
        """Whether a tensor is on a device already."""
        return any(one.tensor.device.type not in ("cpu", "meta") for one in self.held.values())

    def forget_released(self) -> None:
        """Forget the tensors that the function made and dropped."""
        self.held = {key: one for key, one in self.held.items() if not one.is_released()}

    def close(self) -> None:
        """Let go of all that was reached: it is the user's to free, without a garbage collector."""
        for known in (self.restored.undo, self.held, self._seen, self._named):
            known.clear()

    def _add(self, value: Any, name: str) -> None:
        kind = type(value)  # never `__class__`, by which mocks and proxies take part as something else
        if issubclass(kind, self._torch.Tensor):
            if self.is_real(value):
                self.of(value, name)
        elif not issubclass(kind, _LEAVES) and id(value) not in self._seen:
            self._seen[id(value)] = value  # kept, so that no id is used twice
            later = issubclass(kind, self._torch.optim.Optimizer)
            (self._later if later else self._pending).append((value, name))

    def _all(self, values: Any, name: str) -> None:
        for one in list(values):
            self._add(one, name)

    def _visit(self, value: Any, name: str) -> None:
        kind = type(value)
        if issubclass(kind, (dict, list, deque, set)):
            self._all(items_of(value), name)
            self.restored.container(value)
            if kind.__module__ != "builtins":
                self._visit_attributes(value, name)
        elif kind is types.FunctionType:
            self._visit_function(value, name)
        elif issubclass(kind, _OPAQUE):
            self._all(gc.get_referents(value), name)
        elif is_generator(value):
            self.restored.generator(value)
        elif issubclass(kind, type):
            self._visit_class(value, name)
        elif _is_walked(str(kind.__module__)):
            self._visit_object(value, name)

    def _visit_tensor(self, value: Any, name: str) -> None:
        is_parameter = isinstance(value, self._torch.nn.Parameter)
        kind, size = "parameters" if is_parameter else "variables", self._sizes.get(id(value))
        self.held[id(value)] = RealTensor(value, name, kind, of_model=is_parameter, size=size)
        if value.is_leaf and value.grad is not None:
            self.of(value.grad, name)
            if is_parameter:
                self._are_of_model([value.grad], "gradients")
        for hooks in (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)):
            self._all((hooks or {}).values(), name)
        namespace = getattr(value, "__dict__", {})
        self._all(namespace.values(), name)
        self.restored.container(namespace)

    def _are_of_model(self, tensors: Iterable[Any], kind: str = "") -> None:
        for one in filter(self.is_real, tensors):
            held = self.of(one)
            held.of_model, held.kind = True, kind or held.kind

    def _visit_function(self, value: Any, name: str) -> None:
        for freevar, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            if id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                at = cell, "cell_contents"
                self._add(self.restored.place(getattr, setattr, delattr, args=at), freevar)
        self._all((value.__defaults__, value.__kwdefaults__, value.__dict__ or None), name)
        if not _is_users(value.__code__.co_filename):
            return
        codes = list(nested_code(value.__code__))
        names = {one for code in codes for one in code.co_names}  # of attributes, too
        for one in sorted({name for code in codes for name in _globals_in(code)}):
            found = self._named_in(value.__globals__, one)
            if not isinstance(found, types.ModuleType):
                self._add(found, one)
            elif _is_users(getattr(found, "__file__", None) or "<builtin>"):
                for attribute in sorted(names & set(vars(found))):
                    self._add(self._named_in(vars(found), attribute), attribute)

    def _named_in(self, namespace: dict[str, Any], name: str) -> Any:
        """Return the value of a global, which is put back later."""
        if (id(namespace), name) in self._named:
            return None
        self._named.add((id(namespace), name))
        at = namespace.__getitem__, namespace.__setitem__, namespace.__delitem__
        return self.restored.place(*at, args=(name,))

    def _visit_class(self, value: type, name: str) -> None:
        """Add the attributes of a class of the user's, and of those that it is made from."""
        if _is_users(_file_of(value)):
            put, remove = partial(type.__setattr__, value), partial(type.__delattr__, value)
            for one in list(vars(value)):
                self._add(self.restored.place(vars(value).__getitem__, put, remove, args=(one,)), name)
            self._all(value.__bases__, name)

    def _visit_object(self, value: Any, name: str) -> None:
        torch, kind = self._torch, type(value)
        if issubclass(kind, torch.nn.Module):
            self._are_of_model(value._buffers.values())
        elif issubclass(kind, torch.optim.Optimizer):
            weights = [one for group in value.param_groups for one in group["params"]]
            self._are_of_model(weights)
            self._are_of_model((one.grad for one in weights if one.is_leaf), "gradients")
            states = [one for state in value.state.values() for one in state.values()]
            # Numbers stay on the CPU.
            self._are_of_model((one for one in states if getattr(one, "ndim", 0)), "optimizer state")
        self._visit_attributes(value, name or kind.__name__)

    def _visit_attributes(self, value: Any, name: str) -> None:
        with contextlib.suppress(AttributeError):
            namespace = object.__getattribute__(value, "__dict__")
            self._add(namespace if type(namespace) is dict else None, name)
        for base in type(value).__mro__:
            for descriptor in list(vars(base).values()):
                if isinstance(descriptor, types.MemberDescriptorType):
                    at = descriptor.__get__, descriptor.__set__, descriptor.__delete__
                    self._add(self.restored.place(*at, args=(value,)), name)
        if _is_users(_file_of(type(value))):
            self._add(type(value), name)


@functools.cache
def _is_walked(module: str) -> bool:
    """Return whether objects are looked through whose class a module defines."""
    root = module.partition(".")[0]
    return root in _HOLDERS or (root not in _STRANGERS.split() and root not in sys.stdlib_module_names)


def _is_users(file: str) -> bool:
    """Return whether a file's code is the user's, code that has no file included."""
    return is_users(file) or file in ("<string>", "<stdin>") or file.startswith("<python-input")


def _file_of(kind: type) -> str:
    """Return the file that defines a class; an empty name for one of the main program, a cell or `exec`."""
    if kind.__module__ == "builtins":
        return "" if is_made_in_python(kind) else "<builtin>"
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or ""


def _globals_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a code object looks up among the globals, and not those of attributes."""
    for one in dis.get_instructions(code):
        verb, _, space = one.opname.partition("_")
        if verb in ("LOAD", "STORE", "DELETE") and space in ("GLOBAL", "NAME"):
            yield one.argval


def named_arguments(fn: Callable[..., Any], arguments: Arguments) -> Iterator[tuple[int | str, str, Any]]:
    """Yield each position or key, the name of the parameter (a module's are of `forward`), and the value."""
    forward = None if inspect.isroutine(fn) or isinstance(fn, type) else getattr(fn, "forward", None)
    names: list[str] = []
    with contextlib.suppress(TypeError, ValueError):  # no signature is known
        parameters = inspect.signature(forward if callable(forward) else fn).parameters.values()
        names = [one.name for one in parameters if one.kind <= one.POSITIONAL_OR_KEYWORD]
    for place, value in enumerate(arguments.args):
        yield place, names[place] if place < len(names) else f"argument {place + 1}", value
    for name, value in arguments.kwargs.items():
        yield name, name, value
