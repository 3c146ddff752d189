"""Watches training while memory is recorded: backward passes with their graphs, and optimizers.

The step waits for it. Walking a graph takes 1 to 2 us a node, the rest 45 us a pass, most of it for torch's
statistics, which alone tell positions exactly: event times come from a clock that may be set meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from ..allocator.places import stack_of
from ..owners.referents import locals_of
from ..runtime import clock
from ..runtime.collector import undisturbed
from ..runtime.errors import is_from_a_handler
from ..runtime.wrappers import Wrappers
from ..sources import Unavailable
from ..sources.torch import state as torch_compiler
from ..sources.torch.state import module
from .kinds import BackwardPass, BoundedLog, LabelSnapshot, TrainingHistory
from .names import Label, Labels, Values, add, user_frames

T = TypeVar("T")

_SURE = 2  # graphs that are walked whatever it costs
_SURE_AT_PEAKS = 64  # the same, where the peak rose since the position before
_SHARE = 0.01  # others are walked while all of this took less of the time since the recording began
_SNAPSHOTS, _PASSES = 32, 4096  # the latest that are kept; of steps as many as of passes
_LASTING = 256  # snapshots of modules and optimizers that are kept


class Training:
    """The watch on training; recordings that overlap share one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users: set[object] = set()
        self._wrappers = Wrappers(lambda: getattr(module(), "autograd", None))
        self._hooks: list[Any] = []

    def _reset(self) -> None:
        self._snapshots, self._passes = BoundedLog(_SNAPSHOTS), BoundedLog(_PASSES)
        self._statistics: Callable[[int], dict[str, Any]] = _nothing
        self._values: Values | None = None
        self._began_s, self._spent_s, self._walks = 0.0, 0.0, 0
        self._devices: set[int] = set()
        self._peaks: dict[int, int] = {}
        self._rose = False  # whether a peak did between the last two positions
        self._lasting: deque[LabelSnapshot] = deque(maxlen=_LASTING)
        self._stacks: dict[Any, Any] = {}
        self._stepping: dict[int, float] = {}  # by identity of an optimizer, when its step began
        self._steps: deque[tuple[float, float]] = deque(maxlen=_PASSES)

    def begin(self, user: object) -> None:
        """Watch from here on; nothing happens where torch is not there; raises `Unavailable`."""
        torch = module()
        if torch is None:
            return
        with self._lock:
            is_first = not self._users
            self._users.add(user)
            if not is_first:
                return
            self._reset()
            self._began_s, self._values = clock.monotonic_s(), Values(torch)
            read = getattr(torch._C, "_cuda_memoryStats", _nothing)
            self._statistics = getattr(read, "_ipygpulogger_original", read)  # the allocator's own figures
            self._wrappers.put_on({"_engine_run_backward": self._maker})
            if not self._wrappers:
                self._users.clear()
                raise Unavailable("this version of torch does not tell when backward passes run")
            optimizers: Any = sys.modules["torch.optim.optimizer"]
            self._hooks = [
                optimizers.register_optimizer_step_pre_hook(self._steps_now),
                optimizers.register_optimizer_step_post_hook(self._stepped),
            ]

    def end(self, user: object) -> TrainingHistory:
        """Stop watching, unless another recording still needs it; return what was observed."""
        with self._lock:
            if user not in self._users:
                return TrainingHistory()
            snapshots = *self._lasting, *self._snapshots.items()
            history = TrainingHistory(snapshots, self._passes.items(), tuple(self._steps))
            self._users.discard(user)
            if not self._users:
                self._wrappers.take_off()
                while self._hooks:
                    self._hooks.pop().remove()
                self._reset()
        return history

    def after_fork_in_child(self) -> None:
        """Replace the lock, which another thread may have held at the moment of the fork."""
        self._lock = threading.RLock()

    # -- the backward pass ---------------------------------------------------------------------------------

    def _maker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        assert self._values is not None
        torch = self._values.torch
        set_compiler = torch_compiler.set_compiler(torch)

        def _engine_run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True  # in IPython's tracebacks and pytest's
            one = results = None
            compiler = set_compiler(None)
            try:
                one = self._safely(self._entered, sys._getframe(1), outputs, args, kwargs)
            finally:
                set_compiler(compiler)
            try:
                results = original(outputs, *args, **kwargs)
                return results
            finally:
                if one is not None:
                    compiler = set_compiler(None)
                    try:
                        self._safely(self._left, one, results)
                    finally:
                        set_compiler(compiler)

        if not torch_compiler.leave_alone(torch, _engine_run_backward):
            set_compiler = _nothing
        return _engine_run_backward

    def _entered(
        self, frame: FrameType, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> BackwardPass | None:
        """Note where a pass begins; None where no device is used yet."""
        values = self._values
        if values is None:
            return None
        torch = values.torch
        stack = stack_of(frame)
        one = BackwardPass(
            self._stacks.setdefault(stack, stack),
            retained=any(args[1:3]) or bool(kwargs.get("retain_graph") or kwargs.get("create_graph")),
            inner=torch._C._current_graph_task_id() >= 0,
        )
        one.begin = self._positions()
        if self._may_walk():
            self._walks += 1
            outputs = outputs if type(outputs) in (tuple, list) else (outputs,)
            # The code of a tensor's subclass, and that of a mode, is the user's.
            with undisturbed(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                self._walk(values, one, outputs, frame)
        if not one.begin:
            return None
        self._passes.add(one)
        one.began_s = clock.wall_s()
        return one

    def _may_walk(self) -> bool:
        if self._walks < (_SURE_AT_PEAKS if self._rose else _SURE):
            return True
        return self._spent_s <= _SHARE * (clock.monotonic_s() - self._began_s)

    def _walk(self, values: Values, one: BackwardPass, outputs: Any, frame: FrameType) -> None:
        graphs = values.graphs
        found = graphs.walk(outputs)
        labels: Labels = {}
        lasting: Labels = {}
        add(labels, found.saved, Label("activations"))
        for leaf in found.leaves:
            values.of_tensor(labels, "", leaf)
        values.of_names(labels, lasting, (pair for one in user_frames(frame) for pair in locals_of(one)))
        self._devices.update(device for device, _ in (*labels, *lasting))
        if len(one.begin) < len(self._devices):
            one.begin = self._positions()
        self._snapshots.add(LabelSnapshot(one.begin, labels, one))
        if lasting:
            self._lasting.append(LabelSnapshot(one.begin, lasting))
        one.walked, one.whole = True, not found.packed
        # Within another pass, only parameters: the others are copies, whose gradients the outer pass takes.
        one.leaves = list(filter(graphs.is_parameter, found.leaves)) if one.inner else found.leaves

    def _left(self, one: BackwardPass, results: Any) -> None:
        one.ended_s = clock.wall_s()
        values = self._values
        leaves, one.leaves = one.leaves, []
        if values is None:
            return
        torch = values.torch
        labels: Labels = {}
        if one.walked:
            with undisturbed(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                graphs, given = values.graphs, results if type(results) is tuple else ()
                for gradient in (*map(graphs.gradient_of, leaves), *given):
                    add(labels, graphs.addresses_of(gradient), Label("gradients"))
        one.end = self._positions()
        if one.walked:
            self._snapshots.add(LabelSnapshot(one.end, labels))

    # -- the optimizer -------------------------------------------------------------------------------------

    def _steps_now(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        values = self._values
        if values is not None and not values.torch.compiler.is_compiling():
            if values.torch._C._current_graph_task_id() >= 0 or values.torch._C._len_torch_dispatch_stack():
                return  # it is part of a backward pass, or on fake tensors
            self._stepping[id(optimizer)] = clock.wall_s()

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        values = self._values
        if values is not None and not values.torch.compiler.is_compiling():
            if (began_s := self._stepping.pop(id(optimizer), None)) is not None:
                self._steps.append((began_s, clock.wall_s()))
            self._safely(self._read_optimizer, values, optimizer)

    def _read_optimizer(self, values: Values, optimizer: Any) -> None:
        if not values.is_new(optimizer):
            return
        torch = values.torch
        labels: Labels = {}
        with undisturbed(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            values.of_optimizer(labels, "", optimizer)
        self._devices.update(device for device, _ in labels)
        self._lasting.append(LabelSnapshot(self._positions(), labels))

    def _safely(self, work: Callable[..., T], *args: Any) -> T | None:
        """Do work of ours, and count its time; its errors never reach the user."""
        began_s = clock.monotonic_s()
        try:
            return work(*args)
        except Exception as reason:
            if is_from_a_handler(reason):
                raise
            return None
        finally:
            self._spent_s += clock.monotonic_s() - began_s

    # -- positions -----------------------------------------------------------------------------------------

    def _positions(self) -> dict[int, int]:
        """Return how often each device has allocated so far, and notice whether peaks rose."""
        found, rose, read = {}, False, self._statistics
        for device in tuple(self._devices):
            stats = read(device)
            found[device] = stats["allocation"]["all"]["allocated"]
            peak_bytes = stats["allocated_bytes"]["all"]["peak"]
            if self._peaks.get(device) != peak_bytes:
                self._peaks[device] = peak_bytes
                rose = True
        self._rose = rose
        if rose:
            self._snapshots.rise()
            self._passes.rise()
        return found


def _nothing(_: Any) -> Any:
    return None


training: Training = Training()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=training.after_fork_in_child)
