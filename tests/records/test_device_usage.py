"""One device: its id, its ladder, its headroom."""

import pytest
from handmade import gpu
from hypothesis import example, given
from hypothesis import strategies as st

SIZES = st.integers(0, 1 << 40)


def test_a_device_is_named_as_torch_names_it():
    """ "cuda:0"; a key tells slices of one card apart as well; a context made within the scope was not held before."""
    assert (gpu(3, backend="xpu").id, gpu(3, uuid="MIG-1").key) == ("xpu:3", ("cuda", 3, "MIG-1"))
    assert gpu(before=7, context_bytes=5).held_before_bytes == 2


parts = st.fixed_dictionaries(
    dict.fromkeys(("tensors", "cached", "context", "others", "free", "drivers"), SIZES)
)


@given(
    parts,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["both", "allocated alone", "nothing"]),
    st.booleans(),
)
def test_the_ladder_adds_up(truth, neighbours_known, driver_known, allocator, on_the_way):
    """Every rung is what was put there; what is not told apart stands together; the sum is the total."""
    taken = truth["tensors"] + truth["cached"] + truth["context"] + truth["others"]
    drivers = truth["drivers"] if driver_known else 0
    usage = gpu(
        total_bytes=taken + truth["free"] + drivers,
        used_bytes=taken + on_the_way,  # of another moment: the rungs are made from what is free
        free_bytes=truth["free"],
        allocated_bytes=None if allocator == "nothing" else truth["tensors"],
        reserved_bytes=truth["tensors"] + truth["cached"] if allocator == "both" else None,
        neighbours_bytes=truth["others"] if neighbours_known else None,
        driver_bytes=drivers if driver_known else None,
    )
    expected, outside = [], truth["context"]
    if allocator == "nothing":
        outside += truth["tensors"]
    else:
        expected.append(("tensors", truth["tensors"]))
    if allocator == "both":
        expected.append(("cached", truth["cached"]))
    else:
        outside += truth["cached"]
    if neighbours_known:
        expected += [("context and libraries", outside), ("other processes", truth["others"])]
    else:
        expected.append(("context, libraries, other processes", outside + truth["others"]))
    expected.append(("free", truth["free"]))
    if drivers:
        expected.append(("the driver's own", drivers))
    assert list(usage.ladder) == expected
    assert sum(rung.size_bytes for rung in usage.ladder) == usage.total_bytes


@pytest.mark.parametrize("unknown", ["total_bytes", "used_bytes", "free_bytes"])
def test_a_ladder_needs_the_whole_device(unknown):
    """Without the total, what is used or what is free there is none, rather than one that does not add up."""
    sizes = {"total_bytes": 100, "used_bytes": 60, "free_bytes": 40, "allocated_bytes": 10}
    assert gpu(**sizes).ladder
    assert gpu(**sizes | {unknown: None}).ladder == ()


@given(parts, SIZES, st.none() | SIZES, st.booleans())
@example(
    dict.fromkeys(("tensors", "context", "others", "free", "drivers"), 0) | {"cached": 5}, 0, None, False
)
def test_what_could_still_be_allocated(truth, pools, limit, pools_known):
    """What is free, up to the limit, and the cache that is not another pool's."""
    reserved = truth["tensors"] + truth["cached"]
    usage = gpu(
        free_bytes=truth["free"],
        allocated_bytes=truth["tensors"],
        reserved_bytes=reserved,
        pools_bytes=pools if pools_known else None,
        limit_bytes=limit,
    )
    room = truth["free"]
    if limit is not None and limit - reserved < room:
        room = limit - reserved if limit > reserved else 0
    cache = truth["cached"] - (pools if pools_known else 0)
    assert usage.headroom_bytes == room + (max(0, cache))


def test_headroom_without_an_allocator():
    """All that is free; where that is unknown, unknown."""
    assert gpu(free_bytes=100).headroom_bytes == 100
    assert gpu(free_bytes=100, limit_bytes=70).headroom_bytes == 70
    assert gpu(free_bytes=None, allocated_bytes=1, reserved_bytes=5).headroom_bytes is None


@given(SIZES, SIZES, SIZES)
def test_what_is_taken_is_what_is_not_free(used, drivers, free):
    """The driver's own included; where the total or what is free is unknown, what is used."""
    sizes = {"total_bytes": used + drivers + free, "used_bytes": used, "free_bytes": free}
    assert gpu(**sizes).taken_bytes == used + drivers
    assert gpu(**sizes | {"total_bytes": None}).taken_bytes == used
    assert gpu(**sizes | {"free_bytes": None}).taken_bytes == used
    assert gpu(total_bytes=100).taken_bytes is None
