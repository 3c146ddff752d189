"""Budgets: what a size means in bytes, and whether a peak went over it."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipygpulogger.analysis.notable import excesses
from ipygpulogger.records import DeviceUsage, Measurement, Peak, RamUsage
from ipygpulogger.records.units import parse_size

MB, GB = 2**20, 2**30


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("10GB", 10 * GB), ("8 GB", 8 * GB), ("512MB", 512 * MB), ("1.5GiB", 3 * GB // 2),
        ("1000000B", 1_000_000), ("12 b", 12), ("1b", 1), ("3KB", 3072), ("3kib", 3072), ("4g", 4 * GB),
        ("2T", 2048 * GB), (" .5 gb ", GB // 2), ("0.1GB", 107374182), (f"{10**18 - 1}k", (10**18 - 1) * 1024),
    ],
)  # fmt: skip
def test_sizes_as_people_write_them(text, size_bytes):
    """Any case, with or without a space; GB is 2**30 and MB 2**20; a part of a byte is dropped."""
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "GB", "ten", "-1GB", "0GB", "0.5B", "1e9", "nan", "inf", "1.2.3GB", "10,5GB", "1.GB",
        "10 G B", "٣GB", "3\N{KELVIN SIGN}B", "10", " 0 ", ".5", "1.5",
    ],
)  # fmt: skip
def test_what_is_no_size(text):
    """Nothing, less than a byte, a sign, an exponent, two points, no unit: one sentence that shows how to write it."""
    fault = "has no unit" if text.strip() in ("10", "0", ".5", "1.5") else "is not a memory size"
    with pytest.raises(ValueError, match=f"{fault}: write a size such as 10GB, 512MB or 4096B") as caught:
        parse_size(text)
    assert repr(text.strip()) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text())
@example("9" * 5000)
@example("٣GB")
@example("1GB\n2GB")
def test_any_text_is_a_size_or_one_sentence(text):
    """Whatever is typed: at least one byte, or a ValueError of ours."""
    try:
        assert parse_size(text) >= 1
    except ValueError as error:
        assert "write a size such as 10GB" in str(error)


def device(peak, index=0, **fields):
    return DeviceUsage(before_bytes=0, after_bytes=0, peak=peak, index=index, name="x", **fields)


def measured(ram_peak, *gpus):
    ram = RamUsage(before_bytes=0, after_bytes=0, peak=ram_peak)
    return Measurement(label="x", started_at=datetime.now(timezone.utc), time_s=0.0, gen=ram, gpus=gpus)


def exact(size_bytes):
    return Peak(size_bytes, size_bytes, "exact")


def test_over_is_more_than_the_budget():
    """A peak of just the budget is within it; a byte more is over, by a byte, on each device for itself."""
    cell = measured(exact(100), device(exact(100), 0), device(exact(101), 1, backend="xpu"))
    assert list(excesses(cell, ram_bytes=100)) == []
    (ram,) = excesses(cell, ram_bytes=99)
    assert ram == ("RAM", 100, 99, False, 0, True)
    (gpu,) = excesses(cell, gpu_bytes=100)
    assert gpu == ("xpu:1", 101, 100, False, 0, True)
    assert [excess.name for excess in excesses(cell, ram_bytes=1, gpu_bytes=1)] == ["RAM", "cuda:0", "xpu:1"]
    assert list(excesses(cell)) == []
    everybodys = replace(cell, gpus=tuple(replace(gpu, attributed=False) for gpu in cell.gpus))
    assert list(excesses(everybodys, gpu_bytes=1)) == []


def test_a_peak_in_doubt_counts_as_the_least_it_was():
    """Sampled and bounded peaks are over when their lower end is, and say so; what may be over is not."""
    sampled, bounded = Peak(90, None, "sampled"), Peak(90, 120, "bounded")
    for peak in (sampled, bounded):
        assert list(excesses(measured(peak), ram_bytes=100)) == []
        (excess,) = excesses(measured(peak), ram_bytes=80)
        assert (excess.peak_bytes, excess.at_least) == (90, True)


SIZES = st.integers(0, 60).map(lambda quarters: quarters * MB // 4)


@given(SIZES, SIZES, SIZES, SIZES)
def test_a_cell_is_over_by_its_own_need_or_still_over(before, after, more, budget):
    """Its own: it began within the budget, or needed 5 MB; else it is still over. What is over is always said."""
    highest = max(before, after) + more
    usage = RamUsage(before, after, exact(highest))
    found = list(excesses(replace(measured(exact(0)), gen=usage), ram_bytes=budget))
    assert bool(found) == (highest > budget)
    for excess in found:
        assert excess.is_own == (before <= budget or highest - before >= 5 * MB)
        assert excess.began_bytes == before
