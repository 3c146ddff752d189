"""Memory of known size, straight from the kernel: no allocator in between keeps or reuses any."""

import contextlib
import ctypes
import gc
import mmap
import os
import select
from types import FrameType

MB = 2**20
_C = ctypes.CDLL(None) if os.name == "posix" else None


def trim():
    """Give memory that malloc keeps back to the kernel, where malloc can: what is made next is resident anew."""
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)


class Block:
    """Resident memory of so many MB, until `free`."""

    def __init__(self, size_mb):
        self.size_mb = size_mb
        self._map = mmap.mmap(-1, size_mb * MB)
        self._map[:: mmap.PAGESIZE] = b"\1" * len(range(0, size_mb * MB, mmap.PAGESIZE))

    def free(self):
        self._map.close()


def blip(size_mb):
    """Needed for a moment."""
    Block(size_mb).free()


def held_transient(size_mb):
    """Needed for a moment inside one C call that holds the GIL."""
    return len(b"x" * (size_mb * MB))


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


@contextlib.contextmanager
def filled_by_a_child():
    """`fill(size_mb)`: memory of this process that a child fills by cross-memory attach, until `free`.

    It becomes resident without a page fault of this process, as with MPI's and UCX's transports. Yields None
    where the kernel or its settings refuse.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)  # PR_SET_PTRACER, PR_SET_PTRACER_ANY
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        page = ctypes.create_string_buffer(b"\1" * MB, MB)
        os.close(ask)
        while request := os.read(asked, 16):
            address, size_mb = int.from_bytes(request[:8], "little"), int.from_bytes(request[8:], "little")
            done = 0
            for i in range(size_mb):
                mine, theirs = _IoVec(ctypes.addressof(page), MB), _IoVec(address + i * MB, MB)
                done += (
                    libc.process_vm_writev(parent, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) == MB
                )
            os.write(answer, bytes([done == size_mb]))
        os._exit(0)
    os.close(asked)
    os.close(answer)

    def fill(size_mb):
        block = mmap.mmap(-1, size_mb * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof((ctypes.c_char * 0).from_buffer(block))
        os.write(ask, address.to_bytes(8, "little") + size_mb.to_bytes(8, "little"))
        assert select.select([answered], [], [], 30)[0], "the child does not answer"
        if os.read(answered, 1) == b"\1":
            return block
        return None

    try:
        first = fill(1)
        if first is not None:
            first.close()
        yield None if first is None else fill
    finally:
        os.close(ask)
        os.waitpid(child, 0)
        os.close(answered)


@contextlib.contextmanager
def no_frame_kept():
    """No function's frame within waits for a collection: with it would live what its callers hold."""
    gc.collect()
    was = gc.isenabled(), gc.get_debug()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        kept = [one.f_code.co_name for one in gc.garbage if type(one) is FrameType]
    finally:
        gc.garbage.clear()
        gc.set_debug(was[1])
        if was[0]:
            gc.enable()
    assert not kept
