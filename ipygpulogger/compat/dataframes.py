"""`reduce_mem_usage`: fastai's smaller data frames."""

from __future__ import annotations

from typing import Any

from ..records.units import in_mb, printable
from ..runtime.errors import say

_ONE_KIND = {"string", "empty", "bytes", "boolean", "integer", "floating", "date", "time", "datetime"}
_WHOLE_UP_TO = 2**53  # beyond it float64 cannot represent each whole number


def reduce_mem_usage(df: Any) -> Any:
    """Convert the columns of a DataFrame to smaller types, in place, and print the sizes before and after.

    - Integers get the smallest type that holds all values, signed or unsigned as before.
    - float64 becomes float32 if each value stays the same to 7 digits, and each whole number exactly. If
      not, the column is left alone, and a line says so.
    - Text, and other objects that are all of one kind, become categories; None is then NaN.
    - All other columns are left alone.

    The printed sizes are those of ``df.memory_usage()``, which counts 8 bytes for an object.

    Args:
        df: The DataFrame.

    Returns:
        The same DataFrame.
    """
    before_bytes = int(df.memory_usage().sum())
    say(f"Memory usage of dataframe is {in_mb(before_bytes):.2f} MB")
    for position, name in enumerate(df.columns):  # by position, as names need not be unique
        column = df.iloc[:, position]
        smaller = _smaller(column)
        if smaller is not None:
            df.isetitem(position, smaller)
        elif column.dtype == "float64":
            say(f"Error {printable(str(name))} Value would be a float64. Disregarding.")
    after_bytes = int(df.memory_usage().sum())
    percent = 100 * (before_bytes - after_bytes) / before_bytes if before_bytes else 0.0
    say(f"Memory usage after optimization is: {in_mb(after_bytes):.2f} MB")
    say(f"Decreased by {percent:.1f}%")
    return df


def _smaller(column: Any) -> Any:
    """Return the column in a smaller type; None if there is none."""
    import numpy as np
    import pandas as pd

    dtype = column.dtype
    if isinstance(dtype, pd.StringDtype):
        return column.astype("category")
    if not isinstance(dtype, np.dtype):
        return None
    if dtype.kind in "iu":
        return pd.to_numeric(column, downcast="integer" if dtype.kind == "i" else "unsigned")
    if dtype == np.float64:
        with np.errstate(all="ignore"):
            smaller = column.astype(np.float32)
            return smaller if _is_same(column.to_numpy(), smaller.to_numpy(np.float64)) else None
    if dtype.kind == "O" and pd.api.types.infer_dtype(column, skipna=True) in _ONE_KIND:
        return column.astype("category")
    return None


def _is_same(values: Any, rounded: Any) -> bool:
    """Return whether values converted to float32 and back are the same, within the precision of float32."""
    import numpy as np

    is_whole = (values == np.round(values)) & (np.abs(values) <= _WHOLE_UP_TO)
    is_near = (
        np.abs(values - rounded) <= np.abs(values) * 2.0**-24
    )  # half a unit in the last place of float32
    same = (values == rounded) | np.isnan(values) | (is_near & ~is_whole)
    return bool(same.all())
