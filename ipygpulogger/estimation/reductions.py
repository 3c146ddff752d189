"""What a reduction on CUDA allocates, where many blocks of threads share its work (`setReduceConfig`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Dimensions = list[tuple[int, int]]  # sizes and strides
A100 = 108, 2048  # multiprocessors, and threads that run on one of them


def reduction_bytes(
    multiprocessors: tuple[int, int], tensor: Any, out: Any, wide: int, dims: Iterable[int] = ()
) -> tuple[int, ...]:
    """Return what a reduction allocates for partial results, and for its semaphores.

    It depends on how many multiprocessors the device has, and on how many threads run on one of them.
    """
    outputs = max(out.numel(), 1)
    inputs = tensor.numel() // outputs
    if inputs < 2:
        return ()
    reduced, kept = _dimensions(tensor, dims)
    fastest = not kept or (bool(reduced) and reduced[0][1] < kept[0][1])
    first, second = (inputs, outputs) if fastest else (outputs, inputs)
    stride = (reduced if fastest else kept)[0][1] if reduced or kept else 1
    vector = 1
    if stride == 1 and fastest and first > 128 and len(reduced) == 1 and not kept:
        first //= 4
    elif stride == 1 and not fastest:
        vector = _output_vector(reduced, kept)
        first //= vector
    width, height = _block(first, second, (256 if tensor.element_size() == 16 else 512) // vector)
    step_input, step_output = (width, 1) if fastest else (1, width)
    if -(-inputs // step_input) < min(height * 16, 256):
        return ()
    values = -(-inputs // (step_input * height))
    grid = -(-(outputs // vector) // step_output)
    target = multiprocessors[0] * (multiprocessors[1] // (width * height))
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


def _dimensions(tensor: Any, dims: Iterable[int]) -> tuple[Dimensions, Dimensions]:
    """Return what is reduced and what is kept, the fastest first, neighbours merged."""
    kept: Dimensions = []
    reduced: Dimensions = []
    dims = {one % tensor.dim() for one in dims} or set(range(tensor.dim()))
    for at, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1:
            (reduced if at in dims else kept).append((size, stride))
    return _merged(reduced), _merged(kept)


def _merged(dimensions: Dimensions) -> Dimensions:
    found: Dimensions = []
    for size, stride in sorted(dimensions, key=lambda one: one[1]):
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = found[-1][0] * size, found[-1][1]
        else:
            found.append((size, stride))
    return found


def _output_vector(reduced: Dimensions, kept: Dimensions) -> int:
    vector = 4
    for number in (kept[0][0], *(stride for _, stride in (*reduced, *kept[1:]))):
        while number % vector:
            vector //= 2
    return vector
