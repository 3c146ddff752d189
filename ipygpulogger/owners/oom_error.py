"""Recognising an out-of-memory error: one of a device by its class's name or its message; one of RAM.

No framework is imported for it. It is asked after every cell that failed, so it is quick to load.
"""

from __future__ import annotations

import re
from functools import cache

from .exceptions import exception_chain, message_of

_CLASSES = {"OutOfMemoryError", "ResourceExhaustedError"}
FRAMEWORKS = {"torch": "torch", "cupy": "cupy", "cupy_backends": "cupy", "tensorflow": "tensorflow"}
FRAMEWORKS |= {"jaxlib": "jax", "jax": "jax", "rmm": "rmm"}  # by the first word of a class's module
_WORDS = (
    r"\b(?:CUDA|HIP|XPU|MPS|GPU|MTIA|NPU)\b.{0,40}out of memory|RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|out_of_memory: CUDA|OOM when allocating"
    r"|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"
)
_OF_RAM = "can't allocate memory", "Cannot allocate memory"  # torch's words on CPU; ENOMEM, as of `fork`
_HINTS = "memory", "exhausted", "oom", "alloc_failed"  # one of them is in whatever that pattern finds


def out_of_memory_in(error: BaseException | None) -> BaseException | None:
    """Return the out-of-memory error in an exception's chain, itself or one that led to it; else None."""
    return next((one for one in exception_chain(error) if _is_out_of_memory(one)), None)


def failed_for_ram(error: BaseException | None) -> bool:
    """Return whether general RAM could not be allocated; asked of errors without one of a device."""
    return any(
        isinstance(one, MemoryError)
        or (isinstance(one, (RuntimeError, OSError)) and any(word in message_of(one) for word in _OF_RAM))
        for one in exception_chain(error)
    )


def _is_out_of_memory(error: BaseException) -> bool:
    known = any(base.__name__ in _CLASSES and first_word(base) in FRAMEWORKS for base in type(error).__mro__)
    if known:
        return True
    message = message_of(error)
    small = message.lower()
    return any(hint in small for hint in _HINTS) and _words().search(message) is not None


@cache
def _words() -> re.Pattern[str]:
    return re.compile(_WORDS, re.IGNORECASE)


def first_word(kind: type) -> str:
    """Return the top-level package that a class comes from."""
    return str(vars(kind).get("__module__", "")).partition(".")[0]
