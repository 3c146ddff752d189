"""Puts back what a run changed: containers, attributes, names, generators, settings of torch."""

from __future__ import annotations

import contextlib
import random
import sys
from collections import OrderedDict, deque
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_MISSING = object()
State = tuple["Callable[[], Any]", "Callable[[Any], Any]"]  # what reads it, and what sets it
_UNREADABLE = object()
_FUNCTIONS = {  # of torch: what reads a setting, and what sets it
    "get_default_dtype": "set_default_dtype",
    "get_deterministic_debug_mode": "set_deterministic_debug_mode",
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "get_num_threads": "set_num_threads",
    "is_warn_always_enabled": "set_warn_always",
    "is_autocast_cache_enabled": "set_autocast_cache_enabled",
    "multiprocessing.get_sharing_strategy": "multiprocessing.set_sharing_strategy",
    "__future__.get_overwrite_module_params_on_conversion": (
        "__future__.set_overwrite_module_params_on_conversion"
    ),
    "__future__.get_swap_module_params_on_conversion": "__future__.set_swap_module_params_on_conversion",
    "backends.cuda.flash_sdp_enabled": "backends.cuda.enable_flash_sdp",
    "backends.cuda.mem_efficient_sdp_enabled": "backends.cuda.enable_mem_efficient_sdp",
    "backends.cuda.math_sdp_enabled": "backends.cuda.enable_math_sdp",
    "backends.cuda.cudnn_sdp_enabled": "backends.cuda.enable_cudnn_sdp",
}
_ATTRIBUTES = {
    "backends.cuda.matmul": "allow_tf32 allow_fp16_reduced_precision_reduction"
    " allow_bf16_reduced_precision_reduction allow_fp16_accumulation fp32_precision",
    "backends.cudnn": "enabled benchmark benchmark_limit deterministic allow_tf32 fp32_precision",
    "backends.cudnn.conv": "fp32_precision",
    "backends.cudnn.rnn": "fp32_precision",
    "backends.mkldnn.matmul": "fp32_precision",
    "backends": "fp32_precision",
    "utils.deterministic": "fill_uninitialized_memory",
}
_GENERATORS = frozenset((("numpy", "Generator"), ("numpy", "RandomState"), ("torch", "Generator")))


class RealTensor:
    """A tensor of the user's that takes part: the only reference that an estimate has to it.

    Attributes:
        tensor: The tensor.
        name: What it was reached through.
        kind: A kind of `AtPeak`, as far as it is known.
        of_model: Whether `.to(device)` of the model would move it, the state of its optimizer included.
    """

    __slots__ = ("kind", "name", "of_model", "tensor")

    def __init__(self, tensor: Any, name: str, kind: str, *, of_model: bool) -> None:
        self.tensor, self.name, self.kind, self.of_model = tensor, name, kind, of_model

    def is_released(self) -> bool:
        """Return whether nothing else holds the tensor any more; functions of torch must be off."""
        return self.references() <= _ALONE and self.tensor._use_count() == 1

    def references(self) -> int:
        """Return how many references there are to the tensor, these here included."""
        return sys.getrefcount(self.tensor)


_ALONE = RealTensor(object(), "", "", of_model=False).references()


class Restored:
    """What was noted, to be put back at the end."""

    def __init__(self, hold: Callable[[Any], Any]) -> None:
        self._hold = hold
        self._undo: list[tuple[Callable[[Any, Any], None], Any, Any]] = []

    def _note(self, put: Callable[[Any, Any], None], holder: Any, values: Any) -> None:
        self._undo.append((put, holder, [self._hold(one) for one in values]))

    def container(self, holder: Any) -> None:
        """Note the items of a dictionary, list, deque or set."""
        put = _fill_dict if isinstance(holder, dict) else _fill_list
        self._note(_fill_set if isinstance(holder, set) else put, holder, _items(holder))

    def place(self, *access: Callable[..., Any], args: tuple[Any, ...] = ()) -> Any:
        """Note what one place holds, and return it; None if there is nothing.

        `access`: what reads the place, what puts something there, and what leaves nothing there.
        """
        get, put, remove = (partial(one, *args) for one in access)
        value = _value_of(get)
        self._note(_put_at, (get, put, remove), (value,))
        return None if value is _MISSING else value

    def attributes_of(self, kind: type) -> None:
        """Note the attributes of a class."""
        names = [name for name in vars(kind) if not name.startswith("__")]
        self._note(_set_attributes, (kind, names), (vars(kind)[name] for name in names))

    def at_end(self, call: Callable[[], Any]) -> None:
        """Call a function at the end."""
        self._undo.append((lambda *_: call(), None, ()))

    def put_back(self) -> None:
        """Put everything back as it was, whatever the function changed."""
        for put, holder, values in reversed(self._undo):
            put(holder, [one.tensor if type(one) is RealTensor else one for one in values])

    def forget(self) -> None:
        """Let go of all that was noted."""
        self._undo.clear()


def _items(holder: Any) -> list[Any]:
    """Return the items of a container, of a dictionary its keys and values in turn."""
    return (
        [one for item in list(dict.items(holder)) for one in item]
        if isinstance(holder, dict)
        else list(holder)
    )


def _is_same(holder: Any, values: list[Any]) -> bool:
    now = _items(holder)
    return len(now) == len(values) and all(a is b for a, b in zip(now, values, strict=True))


def _fill_list(holder: Any, values: list[Any]) -> None:
    if _is_same(holder, values):
        return
    if isinstance(holder, deque):
        deque.clear(holder)
        deque.extend(holder, values)
    else:
        list.__setitem__(holder, slice(None), values)


def _fill_set(holder: set[Any], values: list[Any]) -> None:
    if {id(one) for one in holder} != {id(one) for one in values}:
        set.clear(holder)
        set.update(holder, values)


def _fill_dict(holder: dict[Any, Any], values: list[Any]) -> None:
    if _is_same(holder, values):
        return
    kind: Any = OrderedDict if isinstance(holder, OrderedDict) else dict
    kind.clear(holder)
    for key, value in zip(values[::2], values[1::2], strict=True):
        kind.__setitem__(holder, key, value)


def _value_of(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (AttributeError, KeyError, TypeError, ValueError):
        return _MISSING


def _put_at(place: Any, values: list[Any]) -> None:
    get, put, remove = place
    if _value_of(get) is not values[0]:
        with contextlib.suppress(AttributeError, TypeError):  # a slot that cannot be written
            remove() if values[0] is _MISSING else put(values[0])


def _set_attributes(place: tuple[type, list[str]], values: list[Any]) -> None:
    kind, names = place
    before = dict(zip(names, values, strict=True))
    for name in [name for name in vars(kind) if not name.startswith("__") and name not in before]:
        type.__delattr__(kind, name)
    for name, value in before.items():
        if vars(kind).get(name, _MISSING) is not value:
            type.__setattr__(kind, name, value)


@contextlib.contextmanager
def settings_restored(torch: ModuleType) -> Iterator[None]:
    """Put back each setting that was changed within."""
    settings = [(get, put, _read(get)) for get, put in _settings(torch)]
    try:
        yield
    finally:
        for _ in range(2):  # some settings change others
            for get, put, old in settings:
                if old is not _UNREADABLE and _read(get) != old:
                    put(old)


def _read(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (AttributeError, RuntimeError):  # of another torch; of the old kind, where the new kind was set
        return _UNREADABLE


def _settings(torch: ModuleType) -> Iterator[State]:
    options = vars(torch._tensor_str.PRINT_OPTS)
    yield options.copy, options.update
    yield partial(_default_device, torch), torch.set_default_device
    yield (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda old: torch.autograd.set_detect_anomaly(*old),
    )
    for kind in ("cuda", "cpu"):
        yield partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind)
        yield partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind)
    for get, put in _FUNCTIONS.items():
        with contextlib.suppress(AttributeError):  # of another torch
            yield attrgetter(get)(torch), attrgetter(put)(torch)
    for path, names in _ATTRIBUTES.items():
        for name in names.split():
            yield partial(attrgetter(f"{path}.{name}"), torch), partial(_set, torch, path, name)


def _set(torch: ModuleType, path: str, name: str, old: Any) -> None:
    setattr(attrgetter(path)(torch), name, old)


def _default_device(torch: ModuleType) -> Any:
    """Return the device that `torch.set_default_device` was given; None if it was not called."""
    context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return None if context is None else context.device


@contextlib.contextmanager
def generators_restored(torch: ModuleType) -> Iterator[None]:
    """Put the generators of Python, numpy and torch back, and the seeds that CUDA has not taken yet."""
    states: list[State] = [(random.getstate, random.setstate)]
    if (numpy := getattr(sys.modules.get("numpy"), "random", None)) is not None:
        states.append((numpy.get_state, numpy.set_state))
    devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    states += map(state_of, (torch.default_generator, *devices))
    if (tracker := getattr(torch.cuda, "_lazy_seed_tracker", None)) is not None:
        states.append((vars(tracker).copy, vars(tracker).update))
    before = [(put, get()) for get, put in states]
    try:
        yield
    finally:
        for put, old in before:
            put(old)


def is_generator(value: Any) -> bool:
    """Return whether an object is a generator of random numbers: of Python's, of numpy's or of torch's."""
    kind = type(value)
    named = kind.__module__.partition(".")[0], kind.__name__
    return isinstance(value, random.Random) or named in _GENERATORS


def state_of(generator: Any) -> State:
    """Return what reads a generator's state, and what sets it."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    bits = getattr(generator, "bit_generator", None)
    if bits is not None:
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return generator.get_state, generator.set_state
