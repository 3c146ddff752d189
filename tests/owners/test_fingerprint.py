"""Which cells have the same code but for numbers."""

import pytest

from ipygpulogger.owners.dimensions import fingerprint

CODE = "batch_size = 32\nwith no_grad():\n    y = net1(x, 'file_3')  # note\n"


@pytest.mark.parametrize(
    "other",
    [
        "batch_size=1_000 # other\n\n  # more\nwith no_grad():  \n    y = net1(x, 'file_12')",
        "batch_size = 1.5e-3\nwith no_grad():\n    y = net1( x,'file_3')\n\n",
    ],
)
def test_the_same_code(other):
    """Numbers, comments, and spaces within lines may change."""
    assert fingerprint(other, {}) == fingerprint(CODE, {})
    assert len(fingerprint(CODE, {})) == 8


@pytest.mark.parametrize(
    ("was", "becomes"), [("net1", "net2"), ("    y", "y"), ("x,", "x.sin(),"), ("'file_3'", "'# 3'")]
)
def test_other_code(was, becomes):
    """A name, a call, an indentation or a text does not."""
    assert fingerprint(CODE.replace(was, becomes), {}) != fingerprint(CODE, {})
    assert fingerprint("\ud800", {}) != fingerprint("", {})  # nor does any text fail


def test_where_the_size_is_said_other_numbers_count():
    """Only the size itself may differ there, also where another number happens to equal it."""
    told = [
        fingerprint(f"batch_size = {size}\nstep(load(batch_size, {width}))", {"batch_size": size})
        for size, width in ((64, 64), (128, 64), (128, 32))
    ]
    assert told[0] == told[1] != told[2]
