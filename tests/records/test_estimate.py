"""What an estimate says: whether it fits, and the largest batch that does."""

import json

import pytest
from memory import MB

from ipygpulogger import AtPeak, Estimate
from ipygpulogger.records.estimate import BatchEstimate, fit


@pytest.mark.parametrize(
    ("available", "decides", "expected"),
    [
        (None, None, (None, None)),
        (120, None, (True, 0)),
        (119, None, (False, 1)),  # fragmentation, and nothing that repeats the allocations
        (119, True, (True, 0)),
        (119, False, (False, 1)),
        (100, True, (True, 0)),
        (99, True, (False, 1)),  # less than what lives: nothing to repeat
        (0, None, (False, 100)),
    ],
)
def test_fit(available, decides, expected):
    """All that is reserved fits, less than the peak does not; in between the allocator decides."""
    asked = []

    def fits_within(size):
        asked.append(size)
        return decides

    assert fit(100, 120, available, None if decides is None else fits_within) == expected
    assert asked == ([available] if decides is not None and 100 <= available < 120 else [])


def batch(size, fits):
    return BatchEstimate(size, size, size, fits, None if fits is None else 0 if fits else 1)


def test_largest_batch():
    """The largest of the sizes that fit, in whatever order they stand and whatever smaller ones do."""
    fits = {8: True, 32: True, 16: False, 64: False, 128: None}
    batches = tuple(batch(size, one) for size, one in fits.items())
    assert Estimate("f", "cuda:0", 1, 1, batches=batches).largest_batch == 32
    assert Estimate("f", "cuda:0", 1, 1, batches=batches[2:]).largest_batch is None


def test_as_json():
    """The dictionary is JSON, in bytes, and has what the fields have."""
    row = AtPeak("cuda:0", "activations", "loss = step(x)", "In [1]:2", 512, 1)
    made = Estimate(
        "f", "cuda:0", 512, 2 * MB, (row,), 0, 16, 16, True, 0, batches=(batch(8, True),), notes=("n",)
    )
    found = json.loads(json.dumps(made.to_dict()))
    assert found["at_peak"] == [
        {"device": "cuda:0", "kind": "activations", "name": "loss = step(x)", "place": "In [1]:2",
         "size_bytes": 512, "blocks": 1, "stacks": []}
    ]  # fmt: skip
    assert found["largest_batch"] == 8
    assert found["batches"][0]["peak_bytes"] == 8
    assert made.left_bytes == 16 - 512
    assert (Estimate("f", "cuda:0", 1, 1).left_bytes, Estimate("f", "cuda:0", 1, 1).held_bytes) == (None, 0)
