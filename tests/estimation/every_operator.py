"""Every operator that torch itself tests (`op_db`), estimated and run on the simulated device.

torch's samples are small, so each is scaled up: the first way that the operator accepts. Simulated kernels compute
nothing, so only sizes matter; what depends on values is refused by `estimate`, or has no truth here.
"""

import collections
import contextlib
import dataclasses
import gc
import re
import sys
import types
import unittest.mock
import warnings
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ipygpulogger.estimation.run import run
from ipygpulogger.estimation.values import EstimateError

MB = 1 << 20
KNOWN = {  # operators whose difference is accepted, and why
    "native_group_norm": "the gradient of its mean and deviation, which no function of torch.nn.functional takes",
}
ELEMENTS = 4 << 20  # of the largest tensor of a sample
SAMPLES = 5  # of one operator
DEVICE = "cuda:0"
# A result for each row, or the product of two long vectors.
NOT_SCALED = ("unbind", "unbind_copy", "split", "tensor_split", "chunk", "meshgrid")


def op_db():
    """Return torch's own list of operators. It needs a package that only tests of torch's use."""
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", stub)
    # Importing it would lock settings of torch that other tests change.
    unlocked = unittest.mock.patch.object(torch.backends, "disable_global_flags", lambda: None)
    with unlocked, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

    return op_db


@dataclass(frozen=True)
class Found:
    """One call of an operator."""

    operator: str  # its name in `op_db`
    # "forward", "backward", "expanded" (its gradient's elements share memory), "out" (into an empty tensor), "in place"
    call: str
    sample: int  # which of torch's samples
    how: str = ""  # how the sample was scaled
    estimated_bytes: int = 0  # what the estimate says it needs besides its arguments
    really_bytes: int = 0  # what the allocator of the simulated device says
    notes: tuple = ()  # of the estimate
    names: tuple = ()  # the operators below autograd
    reason: str = ""  # why there is no comparison; empty where there is one

    @property
    def excess_bytes(self):
        return self.estimated_bytes - self.really_bytes

    @property
    def is_close(self):
        return abs(self.excess_bytes) <= max(MB, self.really_bytes / 100)

    @property
    def is_told(self):
        """Whether a note names the operator, and says in which direction the figure is wrong."""
        says = "not counted" if self.excess_bytes < 0 else "may need less"
        known = {self.operator.rpartition(".")[2], *map(plain, self.names)}
        known |= {family for family in ("linalg", "fft") if any(family in name for name in self.names)}
        return any(says in note and known & set(re.findall(r"\w+", note)) for note in self.notes)

    @property
    def is_right(self):
        return bool(self.reason) or self.is_close or self.is_told or self.operator in KNOWN


def plain(name):
    """Return the name of an operator as a note has it."""
    return name.strip("_").removesuffix("_backward")


class _Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found[func._opname] = None
        return func(*args, **(kwargs or {}))


def ways(sample):
    """Yield ways to scale a sample: a name, and what becomes of a size and of a number in a sequence."""
    tensors = _leaves((sample.input, sample.args, sample.kwargs))
    largest = max(tensors, key=torch.Tensor.numel, default=None)
    if largest is not None and largest.numel() > 1:
        sizes = [size for size in largest.shape if size > 1]
        factor = max(2, round((ELEMENTS / largest.numel()) ** (1 / len(sizes))))
        yield "all", lambda size: size * factor if size > 1 else size, lambda number: number
        yield "all, numbers", *[lambda size: size * factor if size > 1 else size] * 2
        for value in dict.fromkeys((sizes[0], *reversed(sizes))):
            many = max(2, ELEMENTS // largest.numel())
            few = max(2, round(many ** (1 / sizes.count(value))))

            def scale(size, value=value, few=few):
                return size * few if size == value else size

            yield f"each {value}", scale, lambda number: number
            yield f"each {value}, numbers", scale, scale
    yield "as it is", lambda size: size, lambda number: number


def _made(tensor, scale_size):
    """Return a tensor on the device like one of a sample, in the same order of memory, but larger."""
    if tensor.layout != torch.strided:
        raise NotImplementedError("it is sparse")
    shape = [scale_size(size) for size in tensor.shape]
    strides, step = [0] * len(shape), 1
    for at in sorted(range(len(shape)), key=lambda at: (tensor.stride(at), -at)):
        if tensor.stride(at) or tensor.shape[at] < 2:
            strides[at] = step
            step *= max(shape[at], 1)
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=DEVICE)
    return made.requires_grad_(tensor.requires_grad)


def scaled(sample, scale_size, scale_number):
    """Return a sample's input, arguments and named arguments on the device, larger."""

    def of(value):
        if isinstance(value, torch.Tensor):
            return _made(value, scale_size)
        if type(value) in (list, tuple):
            return type(value)(scale_number(one) if type(one) is int else of(one) for one in value)
        if isinstance(value, dict):
            return {key: of(one) for key, one in value.items()}
        return DEVICE if value == "cpu" or value == torch.device("cpu") else value

    return of(sample.input), of(sample.args), of(sample.kwargs)


def _leaves(value):
    return [one for one in _pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]


def forward(fn, given, args, kwargs):
    return torch.no_grad()(lambda: fn(given, *args, **kwargs))


def into_empty(fn, given, args, kwargs):
    """Return a call with `out=`, for as many tensors as the operator returns."""
    with torch.no_grad():
        results = fn(given, *args, **kwargs)
    kinds = [one.dtype for one in _leaves(results)]
    is_one = isinstance(results, torch.Tensor)
    del results

    def call():
        outs = tuple(torch.empty(0, dtype=kind, device=DEVICE) for kind in kinds)
        return fn(given, *args, out=outs[0] if is_one else outs, **kwargs)

    return torch.no_grad()(call)


def backward(fn, given, args, kwargs, *, expands=False):
    def call():
        inputs = [one for one in _leaves((given, args, kwargs)) if one.requires_grad]
        outs = [one for one in _leaves(fn(given, *args, **kwargs)) if one.requires_grad]
        if expands:
            gradients = [torch.ones((), dtype=one.dtype, device=one.device).expand_as(one) for one in outs]
        else:
            gradients = [torch.ones_like(one) for one in outs]
        return torch.autograd.grad(outs, inputs, gradients, allow_unused=True)

    return call


def calls(op):
    """Return the ways to call an operator, by name: functions of its arguments that return the call."""
    found = {"forward": partial(forward, op.op)}
    if op.supports_autograd:
        found |= {"backward": partial(backward, op.op), "expanded": partial(backward, op.op, expands=True)}
    if op.supports_out:
        found["out"] = partial(into_empty, op.op)
    if op.inplace_variant is not None:
        found["in place"] = partial(forward, op.inplace_variant)
    return found


def samples_of(op, most=SAMPLES):
    """Return some of the samples that torch has for an operator, of many different kinds."""
    kind = min(op.dtypes, key=lambda one: (one != torch.float32, not one.is_floating_point, str(one)))
    needs = op.supports_autograd and kind.is_floating_point
    try:
        found = list(op.sample_inputs("cpu", kind, requires_grad=needs))
    except StopIteration:  # it has samples on a real device only
        found = []
    step = max(1, -(-len(found) // most))
    return [(at, found[at]) for at in range(0, len(found), step)]


@contextlib.contextmanager
def _quiet():
    """Without cuDNN, which the simulated device has not; without warnings of what torch's samples use."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        # In one thread: the engine's own would free something of one call during the next.
        with warnings.catch_warnings(), torch.autograd.set_multithreading_enabled(False):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.cudnn.enabled = before


def _clear():
    gc.collect()  # what earlier calls left in circles must not die within the next
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def _really(fn):
    """Return what a call allocates at most besides its arguments."""
    for _ in range(3):
        _clear()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        fn()
        really = torch.cuda.max_memory_allocated() - before
        torch._C._cuda_clearCublasWorkspaces()
        if torch.cuda.memory_allocated() >= before:  # else something from before died meanwhile
            break
    return really


def compared(op, call, at, sample):
    """Estimate and run a call of an operator, scaled in the first way that it accepts."""
    one = {"operator": op.full_name, "call": call, "sample": at}
    make, reason = calls(op)[call], ""
    with _quiet():
        for how, *scale in ways(sample):
            if op.name in NOT_SCALED and how != "as it is":
                continue
            _clear()
            try:
                fn = make(*scaled(sample, *scale))
                one |= {"how": how, "really_bytes": _really(fn)}
                _clear()
                fn = make(*scaled(sample, *scale))  # the last call may have changed its arguments
            except Exception as error:
                reason = reason or f"it does not run: {said(error)}"
                continue
            try:
                found = run(fn, (), {}, DEVICE)
            except EstimateError as error:
                return Found(**one, reason=f"refused: {said(error)}")
            except Exception as error:
                return Found(**one, reason=f"the estimate fails: {said(error)}")
            here = Found(**one, estimated_bytes=found.peak_bytes - found.held_bytes, notes=found.notes)
            return here if here.is_close else dataclasses.replace(here, names=tuple(names_of(fn)))
    return Found(**one, reason=reason)


def names_of(fn):
    """Return the names of the operators below autograd that a function calls."""
    names = _Names()
    with names:
        fn()
    return names.found


def of_operator(op, most=SAMPLES):
    """Compare all ways to call an operator, for some of its samples: the changed ones for the first only."""
    found = []
    for number, (at, sample) in enumerate(samples_of(op, most)):
        names = [name for name in calls(op) if not number or name not in ("out", "in place")]
        found += [compared(op, name, at, sample) for name in names]
    return found


def table(found):
    """Return what differs and what was not compared, as lines."""
    lines = []
    for one in found:
        if not one.is_right:
            sizes = f"{one.estimated_bytes / MB:.1f} MB for {one.really_bytes / MB:.1f} MB"
            how = f"sample {one.sample}, scaled: {one.how}"
            lines.append(f"{one.operator}, {one.call}: {sizes} ({how}); {' '.join(one.notes) or 'no note'}")
    reasons = collections.defaultdict(set)
    for one in found:
        if one.reason:
            reasons[one.reason].add(one.operator)
    compared = [one for one in found if not one.reason]
    lines.append(
        f"{len(compared)} calls of {len({one.operator for one in compared})} operators compared:"
        f" {sum(one.is_close for one in compared)} within 1 % or 1 MB,"
        f" {sum(not one.is_close and one.is_told for one in compared)} with a note, {len(lines)} wrong."
    )
    for reason, operators in sorted(reasons.items(), key=lambda item: -len(item[1])):
        named = ", ".join(sorted(operators)[:8]) + (", ..." if len(operators) > 8 else "")
        lines.append(f"not compared: {reason} ({len(operators)}: {named})")
    return lines


def said(error):
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"
