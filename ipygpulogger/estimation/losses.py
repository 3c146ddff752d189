"""What losses allocate: a value for each element, before these are reduced to one number.

Measured with torch 2.13: some reduce into the tensor of the values, whose memory then stays with the result.
"""

from __future__ import annotations

from typing import Any

NONE = 0  # torch's number of the reduction that gives every element
_KEEPS_VALUES = frozenset(
    ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss"),
)
_HAS_VALUES = frozenset(("huber_loss", "binary_cross_entropy_with_logits"))
_PLACES = {  # of the reduction among the arguments, where it is not the third
    "binary_cross_entropy": 3,
    "binary_cross_entropy_with_logits": 4,
}
LOSSES = _KEEPS_VALUES | _HAS_VALUES


def is_reduced(name: str, args: Any) -> bool:
    """Return whether a loss is one number; its mean is what torch takes by default."""
    place = _PLACES.get(name, 2)
    return len(args) <= place or args[place] != NONE


def kept_bytes(name: str, args: Any) -> int:
    """Return how much stays allocated with the result; 0 where that is its own size."""
    if name == "col2im":  # its result begins with the size of its input
        return _size(args[0])
    return _size(args[0]) if name in _KEEPS_VALUES and is_reduced(name, args) else 0


def values_of(name: str, args: Any) -> tuple[int, ...]:
    """Return the sizes of the values for each element that are there while they are reduced."""
    values = _size(args[0])
    if name == "binary_cross_entropy_with_logits":
        weight = args[3] if len(args) > 3 else None
        weighted = () if weight is None else (_size(weight),)
        return (values, *weighted) if not is_reduced(name, args) else (values, values, *weighted)
    if not is_reduced(name, args):
        return ()
    return (values,) if name in ("mse_loss", "smooth_l1_loss", "huber_loss") else (4,)


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
