"""The memory behind torch's tensors, and what the nodes of autograd graphs keep alive.

No code of the user's runs: no method of a subclass, torch function, dispatch mode or unpack hook.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...records import CPU
from ...runtime.objects import bases_of, is_made_in_python, namespace_of
from ..contract import Holding

_GETSET = type(vars(BaseException)["args"])
_device_names: dict[Any, str] = {}
_PARTS_OF_SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def may_hold(kind: type, torch: ModuleType) -> bool:
    """Return whether values of a class are tensors or nodes of an autograd graph."""
    bases = bases_of(kind)
    return any(base is torch.Tensor for base in bases) or (
        any("next_functions" in namespace_of(base) for base in bases)
        and (not is_made_in_python(kind) or any(base is torch._C._FunctionBase for base in bases))
    )


def holding(value: Any, torch: ModuleType) -> Holding | None:
    """Return a tensor's storage, which views and tied parameters share, or what a graph's node saved."""
    kind, c = type(value), torch._C
    if kind is torch.nn.Parameter or kind is torch.Tensor:
        if not c._len_torch_function_stack() and not c._len_torch_dispatch_stack():
            return _tensor(value, c, getattr)
    elif not issubclass(kind, c.TensorBase):
        return _node(value) if may_hold(kind, torch) else None
    # The code of a subclass, and that of a mode, is the user's.
    with c.DisableTorchFunction(), c._DisableTorchDispatch():
        return _tensor(value, c, _own)


def leading_dimension(value: Any, torch: ModuleType) -> int | None:
    """Return the first dimension of a tensor; None if it has none or answers in Python code."""
    c = torch._C
    if not issubclass(type(value), c.TensorBase):
        return None
    with c.DisableTorchFunction(), c._DisableTorchDispatch():
        shape = () if _dispatches_in_python(value, c) else _own(value, "shape")
    return int(shape[0]) if shape else None


def _own(value: Any, name: str) -> Any:
    """Read torch's own attribute, whatever a subclass defines under this name."""
    return getattr(sys.modules["torch"]._C.TensorBase, name).__get__(value)


def _tensor(value: Any, c: Any, get: Callable[[Any, str], Any]) -> Holding | None:
    """Return what a tensor holds; torch functions and dispatch must be off for a subclass."""
    node = get(value, "grad_fn")
    # Reading the gradient of an intermediate result that retains none makes torch warn.
    gradient = get(value, "grad") if node is None or get(value, "retains_grad") else None
    parts = () if gradient is None else (gradient,)
    try:
        # A class may answer for its device and layout (`dispatch_device=True`): so the storage is asked.
        storage = c.TensorBase.untyped_storage(value)
        address = c._data_address(value)  # of the storage; `storage.data_ptr` would copy a lazy clone
        if address:
            device = storage.device
            name = _device_names.get(device) or _device_names.setdefault(device, str(device))
            mapped = name == CPU and not storage.resizable()  # numpy's memory, a mapped file, ...
            return Holding((name, address), storage.nbytes(), name, parts, node, True, mapped, storage)
    except (RuntimeError, AttributeError, AssertionError):  # sparse, fake or functional, or a wrapper
        if not _dispatches_in_python(value, c):
            names = _PARTS_OF_SPARSE.get(str(_own(value, "layout")), ())
            parts += tuple(getattr(c.TensorBase, name)(value) for name in names)
    return Holding(None, 0, "", parts, node) if parts or node is not None else None


def _dispatches_in_python(value: Any, c: Any) -> bool:
    """Return whether the class has a `__torch_dispatch__`: it usually wraps others, which hold the memory."""
    return bool(c._dispatch_keys(value).has(c.DispatchKey.Python))


def _node(value: Any) -> Holding:
    """Return what a node keeps alive: the nodes before it, the tensors it saved, a leaf's parameter."""
    readers, variable, following = node_readers(type(value))
    parts = [node for node, _ in following(value)] if following is not None else []
    parts += [variable(value)] if variable is not None else []
    counted = True
    for reader in readers:
        try:
            saved = reader(value)
        except RuntimeError:  # after the backward pass
            continue
        for one in saved if isinstance(saved, (tuple, list)) else (saved,):
            data = namespace_of(type(one)).get("data")
            counted = counted and (data is not None or one is None)
            parts += [] if data is None else [data.__get__(one)]
    return Holding(None, 0, "", [part for part in parts if part is not None], None, counted)


def node_readers(kind: type) -> tuple[list[Any], Any, Any]:
    """Return how to read what a node saved, the leaf whose gradient it accumulates, the nodes before it."""
    saved: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for base in reversed(bases_of(kind)):
        for name, found in namespace_of(base).items():
            if type(found) is _GETSET:
                (saved if name.startswith("_raw_saved_") else others)[name] = found.__get__
    return list(saved.values()), others.get("variable"), others.get("next_functions")
