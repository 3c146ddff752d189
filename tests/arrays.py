"""A framework's arrays, made up: of known sizes, shared or not."""

from ipygpulogger.sources import Holding


class Array:
    """A framework's array: some memory, which several of them may share."""

    __slots__ = ("__weakref__", "device", "key", "size_bytes")

    def __init__(self, size_bytes, key=None, device="gpu:0"):
        self.key, self.size_bytes, self.device = key or id(self), size_bytes, device


def holding(value):
    return Holding(value.key, value.size_bytes, value.device) if type(value) is Array else None
