"""What a function reaches: the tensors, and the containers that hold them.

Reached are its arguments, what it closes over, the globals that its code names, and whatever these hold:
containers, attributes of objects, and the functions of the user's that they name.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any

from ..breakdown.places import is_users
from ..runtime.frames import nested_code
from .asked import signature_of
from .generators import is_generator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

_LEAVES = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, type, range, slice, type(...)),
    *(types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.FrameType, types.TracebackType),
)
# Objects of these packages hold no tensors of a training step, and their state is their own.
_STRANGERS = frozenset(
    (
        *(
            "IPython",
            "ipykernel",
            "ipywidgets",
            "traitlets",
            "zmq",
            "logging",
            "tqdm",
            "matplotlib",
            "pandas",
        ),
        *("wandb", "tensorboard", "ipygpulogger"),
    )
)
_HOLDERS = frozenset(("collections", "types", "functools", "argparse"))  # of the standard library


class Reach:
    """What is reached from a function and its arguments.

    Attributes:
        tensors: Each one once, with the name of what it was reached through.
        dicts: The dictionaries, namespaces of objects among them.
        lists: Lists and deques.
        sets: Sets.
        cells: The cells of closures.
        slots: (object, descriptor) for each attribute in a slot.
        functions: Functions, whose defaults may hold tensors.
        globals: (namespace, name) for each global that is named.
        modules: Modules in the sense of `torch.nn`.
        optimizers: Optimizers.
        generators: Random generators.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self.tensors: list[tuple[Any, str]] = []
        self.dicts: list[dict[Any, Any]] = []
        self.lists: list[Any] = []
        self.sets: list[set[Any]] = []
        self.cells: list[Any] = []
        self.slots: list[tuple[Any, Any]] = []
        self.functions: list[Any] = []
        self.globals: list[tuple[dict[str, Any], str]] = []
        self.modules: list[Any] = []
        self.optimizers: list[Any] = []
        self.generators: list[Any] = []
        self._seen: dict[int, Any] = {}
        self._named: set[tuple[int, str]] = set()
        self._pending: deque[tuple[Any, str]] = deque()
        self._later: deque[tuple[Any, str]] = deque()  # optimizers: parameters are named after their module

    def walk(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Collect all that a call of the function reaches."""
        for name, value in _bound(fn, args, kwargs):
            self._add(value, name)
        self._add(fn, "")
        while self._pending or self._later:
            self._visit(*(self._pending or self._later).popleft())

    def close(self) -> None:
        """Let go of all that was reached: it is the user's to free, without a garbage collector."""
        for held in vars(self).values():
            if isinstance(held, (list, dict, set, deque)):
                held.clear()

    def _add(self, value: Any, name: str) -> None:
        if isinstance(value, _LEAVES) or id(value) in self._seen:
            return
        self._seen[id(value)] = value  # kept, so that no id is used twice
        later = isinstance(value, self._torch.optim.Optimizer)
        (self._later if later else self._pending).append((value, name))

    def _visit(self, value: Any, name: str) -> None:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            self._visit_tensor(value, name)
        elif isinstance(value, (dict, list, deque, set, frozenset, tuple)):
            self._visit_container(value, name)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, name)
        elif isinstance(value, types.MethodType):
            self._all((value.__func__, value.__self__), name)
        elif isinstance(value, functools.partial):
            self._all((value.func, value.args, value.keywords), name)
        elif is_generator(value):
            self.generators.append(value)
        elif _is_walked(str(type(value).__module__)):
            if isinstance(value, torch.nn.Module):
                self.modules.append(value)
            elif isinstance(value, torch.optim.Optimizer):
                self.optimizers.append(value)
            self._visit_attributes(value, name or type(value).__name__)

    def _visit_container(self, value: Any, name: str) -> None:
        if isinstance(value, dict):
            self.dicts.append(value)
            self._all(dict.keys(value), name)
            self._all(dict.values(value), name)
            if type(value) is not dict:
                self._visit_attributes(value, name)
            return
        if isinstance(value, (list, deque)):
            self.lists.append(value)
        elif isinstance(value, set):
            self.sets.append(value)
        self._all(value, name)

    def _visit_tensor(self, value: Any, name: str) -> None:
        self.tensors.append((value, name))
        if value.is_leaf and value.grad is not None:
            self._add(value.grad, name)
        for hooks in (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)):
            self._all(list((hooks or {}).values()), name)
        if namespace := getattr(value, "__dict__", None):
            self._all(list(namespace.values()), name)

    def _visit_function(self, value: Any, name: str) -> None:
        self.functions.append(value)
        for freevar, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            if id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                self.cells.append(cell)
                try:
                    self._add(cell.cell_contents, freevar)
                except ValueError:  # empty
                    continue
        self._all((value.__defaults__, value.__kwdefaults__), name)
        if value.__dict__:
            self._add(value.__dict__, name)
        if not _is_users(value.__code__.co_filename):
            return
        names = {one for code in nested_code(value.__code__) for one in code.co_names}
        for one in sorted(names):
            if (id(value.__globals__), one) not in self._named:
                self._named.add((id(value.__globals__), one))
                self.globals.append((value.__globals__, one))
                if one in value.__globals__:
                    self._add_global(value.__globals__[one], one, names)

    def _add_global(self, value: Any, name: str, attributes: set[str]) -> None:
        """Add a global; of a module of the user's, the attributes that the code names."""
        if isinstance(value, types.ModuleType):
            if _is_users(getattr(value, "__file__", None) or "<builtin>"):
                for one in sorted(attributes & set(vars(value))):
                    if (id(vars(value)), one) not in self._named:
                        self._named.add((id(vars(value)), one))
                        self.globals.append((vars(value), one))
                        self._add(vars(value)[one], one)
        elif isinstance(value, type) and _is_users(_file_of(value)):
            members = [getattr(member, "__func__", member) for member in list(vars(value).values())]
            self._all([one for one in members if isinstance(one, types.FunctionType)], name)
        else:
            self._add(value, name)

    def _all(self, values: Any, name: str) -> None:
        for one in list(values):
            self._add(one, name)

    def _visit_attributes(self, value: Any, name: str) -> None:
        namespace = getattr(value, "__dict__", None)
        if type(namespace) is dict:
            self._add(namespace, name)
        for base in type(value).__mro__:
            for descriptor in list(vars(base).values()):
                if isinstance(descriptor, types.MemberDescriptorType):
                    try:
                        one = descriptor.__get__(value)
                    except (AttributeError, TypeError):
                        continue
                    self.slots.append((value, descriptor))
                    self._add(one, name)
            if _is_users(_file_of(base)):
                for method in list(vars(base).values()):
                    if isinstance(method, types.FunctionType):
                        self._add(method, name)


@functools.cache
def _is_walked(module: str) -> bool:
    """Return whether objects are looked through whose class a module defines."""
    root = module.partition(".")[0]
    return root in _HOLDERS or (root not in _STRANGERS and root not in sys.stdlib_module_names)


def _is_users(file: str) -> bool:
    """Return whether a file's code is the user's, code that has no file included."""
    return is_users(file) or file in ("<string>", "<stdin>") or file.startswith("<python-input")


def _file_of(kind: type) -> str:
    """Return the file that defines a class; an empty name for one of the main program or of a cell."""
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or ("<builtin>" if kind.__module__ == "builtins" else "")


def _bound(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the arguments with the names of their parameters."""
    signature = signature_of(fn)
    try:
        bound = {} if signature is None else signature.bind(*args, **kwargs).arguments
    except TypeError:
        bound = {}
    if not bound:
        yield from ((f"argument {position}", one) for position, one in enumerate(args, 1))
        yield from kwargs.items()
        return
    for name, value in bound.items():
        if isinstance(value, tuple):
            yield from ((name, one) for one in value)
        yield name, value
