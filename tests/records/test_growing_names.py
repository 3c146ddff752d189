"""The names that grew in every run of a cell."""

from handmade import cell
from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.records import CPU, Owner, growing_names


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 99)), max_size=4))
def test_the_names_that_grew_in_every_run(runs):
    """Who grew most over all runs comes first; of equals the first in the alphabet."""
    records = [
        cell(owners=tuple(Owner(name, size, CPU, "variable") for name, size in sizes.items()))
        for sizes in runs
    ]
    every = [name for name in "abc" if runs and all(name in sizes for sizes in runs)]
    every.sort(key=lambda name: -sum(sizes[name] for sizes in runs))
    assert list(growing_names(records)) == every


def test_outputs_grow_as_one():
    """`Out[1]` in one run and `Out[2]` in the next are one name, and all of a run's add up."""
    runs = [
        cell(
            owners=(
                Owner(f"Out[{i}]", 30, CPU, "output"),
                Owner(f"Out[-{i}]", 30, "cuda:0", "output"),
                Owner("x", 50, CPU, "variable"),
                Owner("last traceback", 99, CPU, "traceback"),
                Owner("2 smaller names", 99, CPU, "other"),
            )
        )
        for i in (1, 2)
    ]
    assert growing_names(runs) == ("Out", "x")
