"""reduce_mem_usage: the same values in less memory, by the names and lines of fastai v1."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.utils.mem import reduce_mem_usage

LIMITS = [np.iinfo(kind) for kind in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32)]
EDGES = sorted({limit + d for i in LIMITS for limit in (i.min, i.max) for d in (-1, 0, 1)})


def ints(kind):
    within = [edge for edge in EDGES if np.iinfo(kind).min <= edge <= np.iinfo(kind).max]
    some = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    return st.lists(st.sampled_from(within) | some, max_size=5).map(lambda v: pd.Series(v, dtype=kind))


floats = st.lists(
    st.floats(width=32) | st.floats() | st.integers(-(2**60), 2**60).map(float), max_size=5
).map(lambda values: pd.Series(values, dtype="float64"))
missing = st.sampled_from([None, float("nan")])
objects = st.lists(
    st.text(max_size=3) | missing | st.booleans() | st.integers(0, 3) | st.lists(st.integers(), max_size=2),
    max_size=6,
).map(lambda values: pd.Series(values, dtype=object))
texts = st.lists(st.text(max_size=3) | missing, max_size=6).map(
    lambda values: pd.Series(values, dtype=object)
)
columns = st.one_of(*(ints(k) for k in (np.int64, np.int32, np.uint64, np.uint8)), floats, objects, texts)


@settings(max_examples=150, deadline=None)
@given(column=columns)
def test_every_value_stays(column):
    """Whole numbers exactly, as floats too; floats to float32's last place; all else equal and of its type."""
    was = column.copy(deep=True)
    df = pd.DataFrame({"x": column})
    assert reduce_mem_usage(df) is df
    now = df["x"]
    assert len(now) == len(was)
    for before, after in zip(was, now, strict=True):
        if not isinstance(before, (list, bytes, str)) and pd.isna(before):
            assert pd.isna(after)
        elif was.dtype == np.float64 and not (float(before).is_integer() and abs(before) <= 2**53):
            assert after == np.float32(before) if now.dtype == np.float32 else after == before
            assert after == pytest.approx(before, rel=2.0**-24, abs=0)
        else:
            assert after == before
            if was.dtype == object:
                assert type(after) is type(before)


@pytest.mark.parametrize(
    ("values", "was", "now"),
    [
        ([0, 127, -128], "int64", "int8"),
        ([0, 128], "int64", "int16"),
        ([2**31 - 1], "int64", "int32"),
        ([2**31], "int64", "int64"),
        ([0, 255], "uint64", "uint8"),
        ([0, 256], "uint32", "uint16"),
        ([0.1, 2.5e30, np.nan, np.inf], "float64", "float32"),
        ([123456789.0, np.nan], "float64", "float64"),  # a number of somebody's: float32 makes it ...792
        ([16777216.0, np.nan], "float64", "float32"),
        ([1e39], "float64", "float64"),
        ([1e-42], "float64", "float64"),
        ([2.0**-130 + 2.0**-151], "float64", "float64"),  # six digits would be left
        ([2.0**53 + 2], "float64", "float32"),  # beyond what float64 counts one by one
        ([0.5], "float32", "float32"),
        ([True, False], "bool", "bool"),
        (["a", "b", None], object, "category"),
        ([None, None], object, object),
        ([1, True], object, object),
        ([[1], [2]], object, object),
        ([1 + 2j], "complex128", "complex128"),
        ([pd.Timestamp("2024-05-06")], "datetime64[ns]", "datetime64[ns]"),
        ([pd.Timedelta("1s")], "timedelta64[ns]", "timedelta64[ns]"),
        (["a"], "category", "category"),
        (["a", "b"], "string", "category"),
        ([1, None], "Int64", "Int64"),
    ],
)
def test_the_types(capsys, values, was, now):
    """The smallest type that holds them; a float64 that stays is told of, as fastai did."""
    df = reduce_mem_usage(pd.DataFrame({"x": pd.Series(values, dtype=was)}))
    assert df["x"].dtype == now
    told = "Error x Value would be a float64. Disregarding.\n" in capsys.readouterr().out
    assert told == (now == "float64")


def test_what_is_printed(capsys):
    """fastai's three lines, by the sizes that ``df.memory_usage()`` tells; the index is left alone."""
    n = 1 << 17
    df = pd.DataFrame({"x": np.arange(n), "y": np.linspace(0, 1, n)}, index=np.arange(n) * 2)
    reduce_mem_usage(df)
    sizes = (
        "Memory usage of dataframe is {} MB\nMemory usage after optimization is: {} MB\nDecreased by {}%\n"
    )
    assert capsys.readouterr().out == sizes.format("3.00", "2.00", "33.3")
    assert (df.index == np.arange(n) * 2).all()
    assert reduce_mem_usage(empty := pd.DataFrame(index=pd.Index([], dtype="int64"))) is empty
    assert capsys.readouterr().out == sizes.format("0.00", "0.00", "0.0")


def test_names_that_come_twice(capsys):
    """Each of two columns of one name becomes smaller for itself; names need not be text."""
    df = pd.DataFrame([[1, 0.5, 1e39]], columns=["x", "x", 7])
    reduce_mem_usage(df)
    assert [str(kind) for kind in df.dtypes] == ["int8", "float32", "float64"]
    assert "\nError 7 Value" in capsys.readouterr().out
