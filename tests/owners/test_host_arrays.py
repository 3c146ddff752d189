"""What numpy's and Python's own objects hold: by their buffer, whatever looks into it."""

import array
import ctypes
import mmap
import sys
import tempfile
from collections import OrderedDict, deque
from types import SimpleNamespace

import numpy as np
import pytest
from memory import MB
from owned import walked

from ipygpulogger.owners import memory_blocks
from ipygpulogger.owners.memory_blocks import host_holding


def held(**names):
    """{name: (bytes, who shares)} of variables."""
    found = walked(names, [host_holding])
    assert {owner.device for owner in found.owners} <= {"cpu"}
    return {owner.name: (owner.size_bytes, owner.shared) for owner in found.owners}


def test_an_array_and_its_views():
    """A view holds the whole buffer, at whatever offset, shape and class; it counts once."""
    whole = np.ones(MB, np.uint8)
    kept = {"tail": whole[10:], "table": whole.reshape(1024, -1).T, "masked": whole.view(np.ma.MaskedArray)}
    assert held(whole=whole, **kept) == {"whole": (MB, ("tail", "table", "masked"))}
    assert held(**kept, whole=whole) == {"tail": (MB, ("table", "masked", "whole"))}
    for strides in ((0,), (-1,), (1 << 30,)):  # even one that claims more than there is
        strided = np.lib.stride_tricks.as_strided(whole[10:], (1 << 32,), strides)
        found = held(strided=strided, other=np.ones(MB))  # on a line of its own: pytest would print the view
        assert found == {"strided": (MB, ()), "other": (8 * MB, ())}


@pytest.mark.parametrize("front_mb", [0, 1])
@pytest.mark.parametrize("make", [bytearray, lambda text: array.array("b", [0]) * len(text)])
def test_what_lies_right_behind_a_buffer_is_another_s(monkeypatch, make, front_mb):
    """Memory 16 bytes behind it, as malloc places neighbours, is not within; nor if its front is cut off."""
    # All of it counts here, whatever happens to be resident behind the buffer.
    monkeypatch.setattr(memory_blocks, "_residency", SimpleNamespace(of=lambda sizes, _: sizes))
    buffer = make(b"x" * 4 * MB)
    behind = np.frombuffer(buffer, np.uint8).ctypes.data + 4 * MB + 16
    beside = np.frombuffer((ctypes.c_char * MB).from_address(behind), np.uint8)  # never read
    del buffer[: front_mb * MB]
    found = held(buffer=buffer, beside=beside, view=np.frombuffer(buffer, np.uint8)[100:])
    assert found == {"buffer": ((4 - front_mb) * MB, ("view",)), "beside": (MB, ())}


def written(memory):
    memory[:] = b"x" * len(memory)
    return memory


@pytest.mark.parametrize(
    "made",
    [
        lambda: b"x" * MB,
        lambda: bytearray(b"x" * MB),
        lambda: array.array("b", [0]) * MB,
        pytest.param(
            lambda: written(mmap.mmap(-1, MB)), marks=pytest.mark.linux("no page table tells what is a file")
        ),
    ],
    ids=["bytes", "bytearray", "array", "mmap"],
)
def test_buffers_and_what_looks_into_them(made):
    """A memoryview and numpy's arrays on a buffer of Python's hold that buffer, and no second one."""
    buffer = made()
    looks = {"view": memoryview(buffer)[100:], "few": np.frombuffer(buffer, np.uint8)[500:600]}
    ((size_bytes, shared),) = held(buffer=buffer, **looks).values()
    assert MB <= size_bytes < MB + 100
    assert shared == ("view", "few")
    (alone,) = held(few=looks["few"]).values()
    assert alone == (size_bytes, ())
    looks.clear()


def test_large_strings():
    """The object itself is the memory, but of a class derived from str the text lies elsewhere; numbers are none."""
    text, word = "x" * MB, type("Word", (str,), {})("x" * 4 * MB)
    beside = np.frombuffer((ctypes.c_char * 4096).from_address(id(word)), np.uint8)  # never read
    found = held(text=text, again=[text], number=1 << (8 * MB), small="y" * 100, beside=beside, word=word)
    assert found.pop("word")[0] // MB == 4
    assert found == {"text": (sys.getsizeof(text), ("again",)), "beside": (4096, ())}


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, dict.fromkeys, deque, OrderedDict.fromkeys])
def test_tables_of_containers(kind):
    """A container of many small things holds at least its own table, as Python gives its size."""
    many = kind(range(100_000))
    base = dict if isinstance(many, OrderedDict) else type(many)
    assert held(many=many, again={"deep": many}) == {"many": (base.__sizeof__(many), ("again",))}


def test_arrays_of_objects():
    """What they refer to, which the garbage collector is not told."""
    inside = np.ones(MB, np.uint8)
    objects = np.array([inside, None, [b"x" * MB]], dtype=object)
    ((size_bytes, shared),) = held(objects=objects, inside=inside).values()
    assert 2 * MB <= size_bytes < 2 * MB + 100
    assert shared == ("inside",)


@pytest.mark.parametrize("size", [100_000, 2 * MB])
def test_files_are_not_memory(tmp_path, size):
    """What only shows a file's content is no memory of this process's to give back."""
    (tmp_path / "file").write_bytes(b"x" * size)
    mapped = np.memmap(tmp_path / "file", np.uint8, mode="r")
    with (tmp_path / "file").open("rb") as file:
        shown = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert held(mapped=mapped, part=mapped[10:], shown=shown, look=np.frombuffer(shown, np.uint8)) == {}


@pytest.mark.linux("shared memory has no such folder")
def test_a_file_in_shared_memory_is_memory():
    """Its pages go only when the file goes, so who maps it holds them, with all that look into the mapping."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.write(b"x" * 2 * MB)
        file.flush()
        shared = mmap.mmap(file.fileno(), 0)
    looks = {
        "array": np.frombuffer(shared, np.uint8)[5:],
        "view": np.frombuffer(memoryview(shared)[7:], "u1"),
    }
    assert held(shared=shared, **looks) == {"shared": (2 * MB, ("array", "view"))}
    assert held(**looks) == {"array": (2 * MB, ("view",))}


def test_pandas():
    """Frames by their blocks, with columns of numbers, objects and text, and the index; columns share."""
    pandas = pytest.importorskip("pandas")
    numbers, objects = np.ones((MB, 2), np.uint8), [b"x" * MB, [bytearray(MB)]]
    frame = pandas.DataFrame(numbers, copy=True)
    assert held(frame=frame, column=frame[0], values=frame.to_numpy()) == {
        "frame": (2 * MB, ("column", "values"))
    }
    ((size_bytes, _),) = held(frame=pandas.DataFrame({"o": pandas.Series(objects, dtype=object)})).values()
    assert 2 * MB <= size_bytes < 2 * MB + 200
    index = pandas.Index(np.arange(MB // 8))
    assert held(index=index) == {"index": (MB, ())}
    assert held(series=pandas.Series(np.ones(2), index=index[:2]))["series"][0] == MB


def test_arrow():
    """Arrow's buffers, behind frames of pandas and alone, each once."""
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    made = arrow.array(np.arange(MB // 8, dtype=np.int64) + 1)
    column = arrow.chunked_array([made, made[10:]])
    table, batch = arrow.table({"a": column}), arrow.record_batch({"a": made})
    assert held(table=table, column=column, made=made) == {"table": (MB, ("column", "made"))}
    assert held(batch=batch, made=made) == {"batch": (MB, ("made",))}
    texts = pandas.Series(["x" * 64] * (MB // 64), dtype="string[pyarrow]")
    ((size_bytes, _),) = held(texts=texts).values()
    assert MB <= size_bytes <= MB + MB // 4  # and where each text begins


def test_arrow_slices():
    """A slice holds the whole of its buffers."""
    arrow = pytest.importorskip("pyarrow")
    made = arrow.array(np.arange(MB // 8, dtype=np.int64) + 1)
    assert held(part=made[5:9], values=made[7:].to_numpy()) == {"part": (MB, ("values",))}
    assert held(values=made[7:].to_numpy()) == {"values": (MB, ())}


class Hostile(bytearray):
    def _boom(self, *_):
        raise AssertionError("nobody asked for this")

    __len__ = __getattribute__ = __getattr__ = __sizeof__ = __iter__ = __buffer__ = __repr__ = __eq__ = _boom
    __hash__ = __bool__ = _boom


def test_hostile_subclasses():
    """Classes derived from buffers and arrays are asked past what they override."""

    class Mine(np.ndarray):
        def __getattribute__(self, name):
            raise AssertionError(name)

        __len__ = __iter__ = __eq__ = __repr__ = __sizeof__ = __getattribute__

    array = np.ones(MB, np.uint8)
    hostile = bytes.__new__(
        type("Text", (bytes,), {"__sizeof__": Hostile._boom, "__len__": Hostile._boom}), MB
    )
    found = held(mine=array.view(Mine), array=array, hostile=hostile)
    assert found["mine"] == (MB, ("array",))
    assert found["hostile"][0] >= MB


# -- views of any shape ----------------------------------------------------------------------------


def hidden(array):
    """The same memory, whose owner nobody can see: a capsule of DLPack's stands between."""
    return np.from_dlpack(array)


def test_memory_whose_owner_is_hidden():
    """A contiguous view counts as itself, as part of its owner where that is known; any other does not count."""
    memory = np.ones(8 * MB, np.uint8)
    part = hidden(memory[MB + 5 : 3 * MB])
    assert held(part=part, again=part[100:].reshape(-1, 1)) == {"part": (2 * MB - 5, ("again",))}
    assert held(memory=memory, part=part) == {"memory": (8 * MB, ("part",))}
    assert held(part=part, memory=memory) == {"part": (8 * MB, ("memory",))}
    assert held(back=hidden(memory[::-1]), rare=hidden(memory[::2])) == {}
    lent = np.frombuffer((ctypes.c_char * MB)(), np.uint8)
    assert held(lent=lent) == {"lent": (MB, ())}


@pytest.mark.linux("no page table tells what is a file")
def test_a_file_behind_a_hidden_owner(tmp_path):
    """It is no memory either."""
    (tmp_path / "file").write_bytes(b"x" * 2 * MB)
    mapped = np.memmap(tmp_path / "file", np.uint8, mode="r+")
    assert held(mapped=hidden(mapped)) == {}
