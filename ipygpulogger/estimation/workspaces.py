"""What kernels of CUDA allocate besides their results, as far as that is known from torch's code."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from .kernel_temporaries import COPIES, TEMPORARIES, is_long_sort
from .losses import LOSSES, is_reduced, values_of
from .user_lines import user_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .allocations import Allocations

CUBLAS = "workspace of cuBLAS"
# aten/src/ATen/cuda/CublasHandlePool.cpp: for each handle and stream, kept for good.
_CUBLAS_BYTES, _CUBLAS_HOPPER_BYTES = 8_519_680, 33_554_432
_LT_BYTES = 1 << 20
_ONE_WORKSPACE, _OWN_WORKSPACE = (2, 7), (2, 14)  # versions: of both; of cuBLAS itself, not of torch
_USES_CUBLAS = frozenset(
    (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addmv",
        "mv",
        "dot",
        "_addmm_activation",
        "_scaled_mm",
        "addbmm",
        "_euclidean_dist",
        "_transformer_encoder_layer_fwd",
        "_native_multi_head_attention",
        "affine_grid_generator",
        "_trilinear",
        "linalg_solve_triangular",
        "cholesky_solve",
    )
)
_REDUCES = {  # bytes of what is reduced, for each element of the result; 0: as wide as sums are
    **dict.fromkeys(("sum", "mean", "nansum", "linalg_vector_norm", "norm", "prod", "count_nonzero"), 0),
    **dict.fromkeys(("any", "all"), 1),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean", "argmax", "argmin"), 16),
}
_NOT_CAST = frozenset(("argmax", "argmin", "any", "all"))  # before they reduce
_TAKE_NAMED = frozenset(("scatter_reduce", "scatter_reduce_", "sort"))
_SCANS = frozenset(("cumsum", "cumprod"))


class Processor:
    """The processor of a device: by default an A100.

    Attributes:
        multiprocessors: How many it has.
        threads: How many run on one of them.
        is_hopper: Whether its compute capability is 9.0.
        version: torch's: versions give workspaces to cuBLAS (for good) and to cuBLASLt (for one operator).
    """

    multiprocessors, threads, is_hopper = 108, 2048, False

    def __init__(self, torch: ModuleType, index: int) -> None:
        found = re.match(r"(\d+)\.(\d+)", torch.__version__)
        self.version = (int(found[1]), int(found[2])) if found else _ONE_WORKSPACE
        if torch.cuda.is_initialized():  # else this would initialise it
            try:
                device = torch.cuda.get_device_properties(index)
                self.multiprocessors = device.multi_processor_count
                self.threads = device.max_threads_per_multi_processor
                self.is_hopper = (device.major, device.minor) == (9, 0)
            except (AssertionError, AttributeError, RuntimeError):  # there is no such device
                return


class Workspaces:
    """Notes what kernels allocate besides their results.

    Attributes:
        partly: Operators of which only a part is known, for these arguments.
    """

    def __init__(self, processor: Processor, device: Any, allocations: Allocations) -> None:
        self._processor, self._device, self._allocations = processor, device, allocations
        self._has_cublas = False
        self.partly: set[str] = set()

    def use(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note what an operator needs that has just allocated its result."""
        name = func._opname
        if not self._is_there(out):
            return
        if name in _USES_CUBLAS:
            self._use_cublas(is_lt=name == "addmm" and args[0].dim() == 1, inputs=_factors(name, args))
        if name in _REDUCES:
            self._reduce(name, args[0], out[0] if isinstance(out, tuple) else out)
        elif name in _SCANS and args[0].element_size() < out.element_size():
            self._for_a_moment(args[0].numel() * out.element_size())  # cast before
        elif name in LOSSES:
            partial = reduction_bytes(args[0], out, 4, self._processor) if is_reduced(name, args) else ()
            self._for_a_moment(*values_of(name, args), *partial)
        else:
            self._use_inside(name, args, kwargs, out)

    def _use_inside(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Note what single kernels allocate and free."""
        copied = (_size(args[0]),) if name in COPIES and _is_expanded(args[0]) else ()
        partial = reduction_bytes(args[0], out, 4, self._processor) if name == "logsumexp" else ()
        named = kwargs if name in _TAKE_NAMED else {}
        if name == "sort" and is_long_sort(*args, **kwargs):
            self.partly.add("a long sort")
        moments = list(TEMPORARIES[name](*args, **named)) if name in TEMPORARIES else []
        for together in moments or [()]:
            self._for_a_moment(*copied, *together, *partial)

    def _reduce(self, name: str, tensor: Any, out: Any) -> None:
        """Note what a reduction allocates: partial results, and before them its input as it adds it up."""
        size = tensor.element_size()
        if name == "count_nonzero":
            partial = reduction_bytes(tensor, out, 8, self._processor)
            self._for_a_moment(tensor.numel(), 8 * tensor.numel(), *partial)
        elif size < 8 and out.element_size() == 8 and name not in _NOT_CAST:
            partial = reduction_bytes(tensor, out, 8, self._processor)
            self._for_a_moment(8 * tensor.numel(), *partial)
        else:
            wide = _REDUCES[name] or {8: 8, 16: 16}.get(size, 4)
            self._for_a_moment(*reduction_bytes(tensor, out, wide, self._processor))

    def _use_cublas(self, *, is_lt: bool, inputs: tuple[Any, ...]) -> None:
        line = user_line()
        copies = [
            self._allocations.allocate(_size(one), line)[1] for one in inputs if not _has_blas_strides(one)
        ]
        version = self._processor.version
        has_lt = is_lt and not _ONE_WORKSPACE <= version < _OWN_WORKSPACE
        free = self._allocations.allocate(_LT_BYTES if has_lt else 0, user_line())[1]
        if not self._has_cublas and version < _OWN_WORKSPACE:
            self._has_cublas = True
            made, _ = self._allocations.allocate(_cublas_bytes(self._processor), user_line())
            made.kind, made.name = "temporaries", CUBLAS
        for one in (free, *copies):
            one()

    def _is_there(self, out: Any) -> bool:
        one = out[0] if isinstance(out, tuple) else out
        return bool(getattr(one, "fake_device", None) == self._device)

    def _for_a_moment(self, *sizes_bytes: int) -> None:
        frees: list[Callable[[], None]] = [
            self._allocations.allocate(size_bytes, user_line())[1] for size_bytes in sizes_bytes
        ]
        for free in reversed(frees):
            free()


def _factors(name: str, args: Any) -> tuple[Any, ...]:
    """Return the matrices that are multiplied."""
    first = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}.get(name)
    return () if first is None else (args[first], args[first + 1])


def _has_blas_strides(tensor: Any) -> bool:
    """Return whether cuBLAS takes a matrix as it is (`prepare_matrix_for_cublas` in cuda/Blas.cpp)."""
    (rows, columns), (down, across) = tensor.shape[-2:], tensor.stride()[-2:]
    is_plain = (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))
    return is_plain or bool(tensor.is_contiguous())


def _is_expanded(tensor: Any) -> bool:
    """Return whether elements of a tensor share their memory: many kernels make a copy then."""
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _cublas_bytes(processor: Processor) -> int:
    said = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if said:
        return sum(int(size) * int(count) * 1024 for size, count in said)
    return _CUBLAS_HOPPER_BYTES if processor.is_hopper else _CUBLAS_BYTES


def reduction_bytes(tensor: Any, out: Any, wide: int, processor: Processor) -> tuple[int, ...]:
    """Return what a reduction allocates for partial results, and for its semaphores.

    The rules are those of `setReduceConfig` in aten/src/ATen/native/cuda/Reduce.cuh: where many values are
    reduced to few, several blocks of threads share the work.

    Args:
        tensor: What is reduced.
        out: The result; its dimensions tell which ones are reduced.
        wide: Bytes of one partial result.
        processor: Of the device.
    """
    outputs = max(out.numel(), 1)
    inputs = tensor.numel() // outputs
    if inputs < 2:
        return ()
    reduced, kept = _dimensions(tensor, out)
    fastest = not kept or (bool(reduced) and reduced[0][1] < kept[0][1])
    first, second = (inputs, outputs) if fastest else (outputs, inputs)
    stride = (reduced if fastest else kept)[0][1] if reduced or kept else 1
    vector = 1
    if stride == 1 and fastest and first > 128 and len(reduced) == 1 and not kept:
        first //= 4
    elif stride == 1 and not fastest:
        vector = _output_vector(reduced, kept)
        first //= vector
    most = (256 if tensor.element_size() == 16 else 512) // vector
    width, height = _block(first, second, most)
    step_input, step_output = (width, 1) if fastest else (1, width)
    if -(-inputs // step_input) < min(height * 16, 256):
        return ()
    step_input *= height
    values = -(-inputs // step_input)
    grid = -(-(outputs // vector) // step_output)
    target = processor.multiprocessors * (processor.threads // (width * height))
    if values < 256 or grid > target:
        return ()
    shares = max(min(-(-target // grid), -(-values // 16)), -(-values // 256))
    if shares <= 1:
        return ()
    return wide * outputs * shares * (1 if fastest else width * vector), 4 * grid


def _block(first: int, second: int, most: int) -> tuple[int, int]:
    """Return width and height of a block of threads."""
    first, second = (most if size >= most else 1 << max(size, 1).bit_length() - 1 for size in (first, second))
    height = min(second, most // min(first, 32))
    return min(first, most // height), height


def _dimensions(tensor: Any, out: Any) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return (size, stride) of what is reduced and of what is kept, the fastest first, neighbours merged."""
    sizes, strides = list(tensor.shape), list(tensor.stride())
    left = list(out.shape)
    kept: list[tuple[int, int]] = []
    reduced: list[tuple[int, int]] = []
    if len(left) == len(sizes):
        are_kept = [size == one for size, one in zip(sizes, left, strict=True)]
    else:
        are_kept = _kept(sizes, left)
    for size, stride, is_kept in zip(sizes, strides, are_kept, strict=True):
        if size > 1:
            (kept if is_kept else reduced).append((size, stride))
    return _merged(reduced), _merged(kept)


def _kept(sizes: list[int], left: list[int]) -> list[bool]:
    """Return which dimensions are left of a tensor's; of several ways, that which keeps the last ones."""
    found, at = [], len(left) - 1
    for size in reversed(sizes):
        is_kept = at >= 0 and left[at] == size
        at -= is_kept
        found.append(is_kept)
    return found[::-1]


def _merged(dimensions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for size, stride in sorted(dimensions, key=lambda one: one[1]):
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = found[-1][0] * size, found[-1][1]
        else:
            found.append((size, stride))
    return found


def _output_vector(reduced: list[tuple[int, int]], kept: list[tuple[int, int]]) -> int:
    vector = 4
    for number in (kept[0][0], *(stride for _, stride in (*reduced, *kept[1:]))):
        while number % vector:
            vector //= 2
    return vector
