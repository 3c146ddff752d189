"""What changed between two measurements."""

from handmade import CHANGES, MB, gpu, measured, ram
from hypothesis import example, given
from hypothesis import strategies as st

from ipygpulogger.records import CPU, DRIVER, DeviceHolding, came_back, held_bytes, moved_between


def test_what_is_held_now():
    """Resident memory, and what live arrays hold on the devices of frameworks; unknown is None, not left out."""
    now = measured(ram(5, 7), gpu(0, allocated_bytes=3), gpu(1), gpu(2, backend=DRIVER, allocated_bytes=4))
    assert held_bytes(now) == {"cuda:0": 3, "cuda:1": None, CPU: 7}


def test_what_came_back():
    """Of each device what its arrays and the whole device hold less, where both ends are known; RAM last."""
    before = measured(
        ram(0, 500),
        gpu(5, uuid="GPU-f", allocated_bytes=1, used_bytes=1),  # gone, as all of a device that was lost
        gpu(0, uuid="GPU-a", allocated_bytes=90, used_bytes=200),
        gpu(1, uuid="GPU-b", allocated_bytes=50, used_bytes=None),
        gpu(2, uuid="GPU-c", allocated_bytes=None, used_bytes=70),
        gpu(3, uuid="GPU-d", allocated_bytes=30, used_bytes=30),
        gpu(4, uuid="GPU-e", allocated_bytes=30, used_bytes=30),
    )
    after = measured(
        ram(0, 450),
        gpu(0, uuid="GPU-a", allocated_bytes=60, used_bytes=260),
        gpu(1, uuid="GPU-b", allocated_bytes=50, used_bytes=10),
        gpu(2, uuid="GPU-c", allocated_bytes=5, used_bytes=5),
        gpu(3, uuid="GPU-z", allocated_bytes=3, used_bytes=3),  # another card under its index
        gpu(4, uuid="GPU-e", allocated_bytes=None, used_bytes=3),
    )
    assert list(came_back(before, after).items()) == [("cuda:0", (30, -60)), ("cuda:1", (0,)), ("RAM", (50,))]


@given(CHANGES, CHANGES, st.sampled_from([0, MB, 5 * MB]), st.booleans(), st.booleans())
@example(MB, 0, 0, True, True)
@example(MB + 1, 0, 0, True, True)
@example(-MB - 1, 0, MB, True, True)
@example(5 * MB, 0, 5 * MB, True, True)
@example(5 * MB + 1, 0, 5 * MB, True, True)
@example(MB, 1, 0, True, True)
def test_what_moved_between_two_cells(inside, outside, grain, known_before, known_after):
    """In the arrays and outside them where both ends are known, by more than 1 MB; of RAM by more than its grain."""
    base = 1 << 45
    ended = {
        CPU: DeviceHolding(CPU, base),
        "GPU-1": DeviceHolding("cuda:0", base, base if known_before else None),
    }
    began = {
        CPU: DeviceHolding(CPU, base + inside),
        "GPU-1": DeviceHolding("cuda:0", base + inside, base + outside if known_after else None),
    }
    expected, moved = {}, inside + (outside if known_before and known_after else 0)
    if abs(inside) > MB and abs(inside) > grain:
        expected[CPU] = inside
    if abs(moved) > MB:
        expected["cuda:0"] = moved
    assert dict(moved_between(ended, began, grain)) == expected
    assert moved_between(began, began, grain) == ()
    new = moved_between({}, {"GPU-2": DeviceHolding("cuda:1", 3 * MB, 900 * MB)}, grain)
    assert new == (("cuda:1", 3 * MB),)
