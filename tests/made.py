"""Records of every kind, made by hypothesis: what any machine, notebook or user could leave in one."""

from datetime import datetime, timedelta, timezone

from hypothesis import Phase
from hypothesis import strategies as st

from ipygpulogger.records import (
    AtPeak,
    CellRecord,
    ChildrenUsage,
    ChildUsage,
    DeviceUsage,
    Heap,
    LineUsage,
    Metric,
    OutOfMemory,
    Owner,
    Peak,
    RamUsage,
    Usage,
)
from ipygpulogger.storage.decode import types_of

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)  # to shrink such a record takes minutes
SIZES = st.integers(0, 1 << 40)  # bytes; no device holds more
TEXTS = st.text(st.characters(), max_size=400) | st.text(
    st.sampled_from("<>&\"'\\\0\n\r,;=\u2028\ud800\U0001f600a")
)
SHORT = st.text(st.characters(exclude_categories=["C"]), max_size=20)
TIMES_S = st.floats(0, 1e6)


def plain(size_bytes=1, **fields):
    """A small record."""
    return CellRecord(
        **{
            "label": "In [4]",
            "started_at": datetime(2026, 11, 21, tzinfo=timezone.utc),
            "time_s": 0.5,
            "gen": RamUsage(0, size_bytes, Peak(size_bytes, size_bytes, "exact")),
            "execution_count": 4,
            "cell_id": "abc",
            "source": "x = 1",
            "status": "ok",
            **fields,
        }
    )


def maybe(strategy):
    return st.none() | strategy


@st.composite
def peaks(draw):
    lo_bytes = draw(SIZES)
    quality = draw(st.sampled_from(["exact", "bounded", "sampled"]))
    hi_bytes = draw(st.just(lo_bytes) | maybe(SIZES))
    return Peak(lo_bytes, hi_bytes, quality, draw(st.sampled_from([0, 4096, 512])))


TIMELINES = st.lists(st.tuples(TIMES_S, SIZES), max_size=64).map(lambda points: tuple(sorted(points)))
HEAPS = maybe(st.builds(Heap, SIZES, SIZES))
OWNERS = st.lists(
    st.builds(
        Owner,
        TEXTS,
        SIZES,
        st.sampled_from(["cpu", "cuda:0"]),
        st.sampled_from(["variable", "output", "traceback", "other"]),
        st.lists(TEXTS, max_size=2).map(tuple),
    ),
    max_size=10,
).map(tuple)


def devices(index, *, attributed):
    known = {
        name: maybe(SIZES)
        for name in DeviceUsage.__dataclass_fields__
        if name.endswith("_bytes")
        and name
        not in ("before_bytes", "after_bytes", "unattributed_bytes", "unknown_rise_bytes", "context_bytes")
    }
    return st.builds(
        DeviceUsage,
        before_bytes=SIZES,
        after_bytes=SIZES,
        peak=peaks(),
        index=st.just(index),
        name=st.just("NVIDIA H100 80GB HBM3") | TEXTS,
        uuid=maybe(st.uuids().map(lambda found: f"GPU-{found}")),
        backend=st.sampled_from(["cuda", "xpu", "nvml"]),
        attributed=st.just(attributed),
        unified=st.booleans(),
        reserved_peak=maybe(peaks()),
        unattributed_bytes=st.just(0) | SIZES,
        unknown_rise_bytes=st.just(0) | SIZES,
        context_bytes=st.just(0) | SIZES,
        metrics=st.lists(
            st.builds(Metric, st.just("energy"), maybe(st.floats(0, 1e9)), st.just("J"), TEXTS), max_size=2
        ).map(tuple),
        timeline=TIMELINES,
        **known,
    )


AT_PEAK = st.just(()) | st.lists(
    st.builds(
        AtPeak,
        st.sampled_from(["cpu", "cuda:0", "cuda:1"]),
        st.sampled_from(types_of(AtPeak)["kind"].__args__),
        TEXTS,
        st.sampled_from(["In [7]:3", "train.py:41"]) | TEXTS,
        SIZES,
        st.integers(1, 1 << 20),
        maybe(SIZES),
    ),
    max_size=20,
).map(tuple)


GPUS = st.integers(0, 16).flatmap(
    lambda count: st.booleans().flatmap(
        lambda attributed: st.tuples(*(devices(index, attributed=attributed) for index in range(count)))
    )
)


CHILDREN = st.builds(
    ChildrenUsage,
    SIZES,
    SIZES,
    peaks(),
    st.integers(0, 99),
    st.booleans(),
    st.just(0) | st.integers(0, 99),
    maybe(SIZES),
    st.lists(
        st.builds(
            ChildUsage, SIZES, SIZES, peaks(), SHORT, st.integers(1, 1 << 22), maybe(SIZES), st.booleans()
        ),
        max_size=4,
    ).map(tuple),
)


def records(**fixed):
    """Any record of a cell; with these fields as given."""
    return st.builds(
        CellRecord,
        **{
            "label": st.integers(1, 9999).map("In [{}]".format) | TEXTS,
            "started_at": st.datetimes(
                datetime(2000, 1, 1),  # noqa: DTZ001
                datetime(2100, 1, 1),  # noqa: DTZ001
                timezones=st.sampled_from([timezone.utc, timezone(timedelta(hours=-3, minutes=-30))]),
            ),
            "time_s": TIMES_S,
            "gen": st.builds(RamUsage, SIZES, SIZES, peaks(), HEAPS, HEAPS, TIMELINES, st.just(0) | SIZES),
            "gpus": GPUS,
            "children": maybe(CHILDREN),
            "pinned": maybe(st.builds(Usage, SIZES, SIZES, peaks())),
            "notes": st.lists(TEXTS, max_size=5).map(tuple),
            "at_peak": AT_PEAK,
            "peak_times_s": st.lists(st.tuples(st.sampled_from(["cpu", "cuda:0"]), TIMES_S), max_size=2).map(
                tuple
            ),
            "execution_count": maybe(st.integers(1, 9999)),
            "cell_id": maybe(SHORT.map(lambda name: name[:10]) | st.uuids().map(str)),
            "source": TEXTS,
            "status": st.sampled_from(["ok", "error", "interrupted"]),
            "error": maybe(SHORT),
            "current_gpu": maybe(st.integers(0, 15)),
            "owners": OWNERS,
            "owners_complete": st.booleans(),
            "gpulog_only": st.booleans(),
            "dimensions": st.just(()) | st.lists(st.tuples(TEXTS, SIZES), max_size=8).map(tuple),
            "code": st.just("") | TEXTS,
            "unexplained": st.lists(
                st.tuples(st.sampled_from(["cpu", "cuda:0"]), st.integers(-(1 << 40), 1 << 40)), max_size=2
            ).map(tuple),
            "between": st.lists(
                st.tuples(st.sampled_from(["cpu", "cuda:0"]), st.integers(-(1 << 40), 1 << 40)), max_size=2
            ).map(tuple),
            "lines": st.lists(
                st.builds(
                    LineUsage,
                    st.integers(1, 99),
                    TEXTS,
                    st.integers(1, 99),
                    TIMES_S,
                    st.builds(Usage, SIZES, SIZES, peaks()),
                    st.just(()) | devices(0, attributed=True).map(lambda gpu: (gpu,)),
                    st.sampled_from(["", "In [3]"]) | TEXTS,
                    st.booleans(),
                    st.lists(st.tuples(st.sampled_from(["cpu", "cuda:0"]), SIZES), max_size=2).map(tuple),
                ),
                max_size=3,
            ).map(tuple),
            "out_of_memory": maybe(
                st.builds(
                    OutOfMemory,
                    st.just("cuda:0"),
                    *([maybe(SIZES)] * 6),
                    SIZES,
                    SIZES,
                    OWNERS,
                    TEXTS,
                    AT_PEAK,
                )
            ),
            **fixed,
        },
    )
