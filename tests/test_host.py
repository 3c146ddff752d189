"""What numpy's and Python's own objects hold: by their buffer, whatever looks into it."""

import array
import ctypes
import gc
import mmap
import sys
from collections import OrderedDict, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import MB

from ipygpulogger.claims import Root
from ipygpulogger.reach import walk
from ipygpulogger.sources.host import HOST, of_files


def held(**names):
    """{name: (bytes, who shares)} of variables."""
    found = walk(
        [Root(name, "variable", value) for name, value in names.items()], [HOST.holding], budget_s=60
    )
    assert found.complete
    assert {owner.device for owner in found.owners} <= {"cpu"}
    return {owner.name: (owner.size_bytes, owner.shared) for owner in found.owners}


def test_an_array_and_its_views():
    """A view holds the whole buffer, at whatever offset, shape and class; it counts once."""
    whole = np.ones(MB, np.uint8)
    kept = {"tail": whole[10:], "table": whole.reshape(1024, -1).T, "masked": whole.view(np.ma.MaskedArray)}
    assert held(whole=whole, **kept) == {"whole": (MB, ("tail", "table", "masked"))}
    assert held(**kept, whole=whole) == {"tail": (MB, ("table", "masked", "whole"))}


def test_where_a_text_lies_is_not_known():
    """Of a class derived from str the text lies apart from the object: nobody's memory is within that."""
    word = type("Word", (str,), {})("x" * 4 * MB)
    beside = np.frombuffer((ctypes.c_char * MB).from_address(id(word) + 64), np.uint8)  # never read
    sizes = {
        name: (round(size_bytes / MB), shared)
        for name, (size_bytes, shared) in held(beside=beside, word=word).items()
    }
    assert sizes == {"beside": (1, ()), "word": (4, ())}


class Kept(bytearray):
    __slots__ = ("more",)


@pytest.mark.parametrize(
    "buffer",
    [bytearray(b"x" * 4 * MB), Kept(b"x" * 4 * MB), array.array("b", [0]) * (4 * MB)],
    ids=["bytearray", "subclass", "array"],
)
def test_what_lies_right_behind_a_buffer_is_another_s(buffer):
    """Memory begins 16 bytes behind a buffer, as malloc places neighbours: it is not within that buffer."""
    behind = np.frombuffer(buffer, np.uint8).ctypes.data + 4 * MB + 16
    beside = np.frombuffer((ctypes.c_char * MB).from_address(behind), np.uint8)  # never read
    found = held(buffer=buffer, beside=beside)
    assert {name: shared for name, (_, shared) in found.items()} == {"buffer": (), "beside": ()}


def test_a_bytearray_cut_at_its_front():
    """What is left of it counts, its views are within that, and what lies behind is another's."""
    buffer = bytearray(b"x" * 4 * MB)
    behind = np.frombuffer(buffer, np.uint8).ctypes.data + 4 * MB + 16
    beside = np.frombuffer((ctypes.c_char * MB).from_address(behind), np.uint8)  # never read
    del buffer[:MB]
    view = np.frombuffer(buffer, np.uint8)[100:]
    found = held(buffer=buffer, beside=beside, view=view)
    assert found == {"buffer": (3 * MB, ("view",)), "beside": (MB, ())}


def test_a_view_alone_holds_it_all():
    """Ten bytes of a megabyte keep the megabyte."""
    assert held(few=np.ones(MB, np.uint8)[5:15]) == {"few": (MB, ())}


@pytest.mark.parametrize(
    "made",
    [
        lambda: b"x" * MB,
        lambda: bytearray(b"x" * MB),
        lambda: array.array("b", [0]) * MB,
        lambda: mmap.mmap(-1, MB),
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


def test_large_strings_and_numbers():
    """The object itself is the memory; small ones are not counted."""
    text, number = "x" * MB, 1 << (8 * MB)
    found = held(text=text, again=[text], number=number, small="y" * 100, one=1)
    assert found == {"text": (sys.getsizeof(text), ("again",)), "number": (sys.getsizeof(number), ())}


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


def test_files_are_not_memory(tmp_path):
    """What only shows a file's content is no memory of this process's to give back."""
    (tmp_path / "file").write_bytes(b"x" * 2 * MB)
    mapped = np.memmap(tmp_path / "file", np.uint8, mode="r")
    with (tmp_path / "file").open("rb") as file:
        shown = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert held(mapped=mapped, part=mapped[10:], shown=shown, look=np.frombuffer(shown, np.uint8)) == {}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nobody else tells")
def test_the_system_tells_which_are_files(tmp_path):
    """By address: of a mapping of a file it says so, of one of memory not."""
    (tmp_path / "file").write_bytes(b"x" * 2 * MB)
    mapped = np.memmap(tmp_path / "file", np.uint8, mode="r")
    memory = np.ones(2 * MB, np.uint8)
    starts = [one.__array_interface__["data"][0] for one in (mapped, memory)]
    assert of_files(starts) == {starts[0]}
    assert of_files([starts[0] + MB, starts[1] + MB]) == {starts[0] + MB}
    assert of_files([]) == set()


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
    table = arrow.table({"a": column})
    assert held(table=table, column=column, made=made) == {"table": (MB, ("column", "made"))}
    texts = pandas.Series(["x" * 64] * (MB // 64), dtype="string[pyarrow]")
    ((size_bytes, _),) = held(texts=texts).values()
    assert MB <= size_bytes <= MB + MB // 4  # and where each text begins


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


def test_looking_holds_nothing():
    """After a walk an array is as free as before, and a buffer may be resized again."""
    buffer = bytearray(MB)
    assert held(buffer=buffer)
    buffer.extend(b"x" * MB)
    array = np.ones(MB, np.uint8)
    before = sys.getrefcount(array)
    assert held(array=array)
    assert sys.getrefcount(array) == before
    assert gc.isenabled()


sizes = st.integers(1500, 5000)


@settings(deadline=None, max_examples=60)
@given(st.lists(sizes, min_size=1, max_size=5), st.data())
def test_any_views_against_a_model(lengths, data):
    """Arrays, views of views, in lists and dicts: each buffer once, the first name's, whole."""
    buffers = [np.ones(length, np.uint8) for length in lengths]
    names, model = {}, {}
    for place in range(data.draw(st.integers(1, 6))):
        values, reached = [], set()
        for number in data.draw(st.lists(st.integers(0, len(buffers) - 1), max_size=3)):
            value = buffers[number]
            for start in data.draw(st.lists(st.integers(0, 400), max_size=3)):
                value = value[start:]
            values.append([value, [value], {"a": value}, memoryview(value)][data.draw(st.integers(0, 3))])
            reached.add(number)
        names[f"n{place}"], model[f"n{place}"] = values, reached
    expected, taken = {}, set()
    for name, reached in model.items():
        new = reached - taken
        taken |= new
        if new:
            shared = tuple(other for other in model if model[other] & new and other != name)
            expected[name] = sum(lengths[number] for number in new), shared
    assert held(**names) == expected
