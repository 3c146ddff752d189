"""Records of every kind, made by hypothesis: what any machine, notebook or user could leave in one."""

import types
from dataclasses import is_dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal, Union, get_args, get_origin

from hypothesis import Phase
from hypothesis import strategies as st

from ipygpulogger.records import (
    CellRecord,
    ChildUsage,
    DeviceUsage,
    KindTimeline,
    OutOfMemory,
    Peak,
    RamUsage,
    Timeline,
)
from ipygpulogger.storage.decode import types_of

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)  # to shrink such a record takes minutes
SIZES = st.integers(0, 1 << 40)  # bytes; no device holds more
CHANGES = st.integers(-(1 << 40), 1 << 40)
TEXTS = st.text(st.characters(), max_size=400) | st.text(
    st.sampled_from("<>&\"'\\\0\n\r,;=\u2028\ud800\U0001f600a")
)
SHORT = st.text(st.characters(exclude_categories=["C"]), max_size=20)
TIMES_S = st.floats(0, 1e6)
DEVICES = st.sampled_from(["cpu", "cuda:0", "cuda:1"])
ZONES = st.sampled_from([timezone.utc, timezone(timedelta(hours=-3, minutes=-30))])


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
    hi_bytes = draw(st.just(lo_bytes) | (SIZES if quality == "exact" else maybe(SIZES)))
    return Peak(lo_bytes, hi_bytes, quality, draw(st.sampled_from([0, 4096, 512])))


OF_TYPE = {int: SIZES, float: TIMES_S, str: TEXTS, bool: st.booleans(), Peak: peaks()}
MOST = {"timeline": 64, "at_peak": 20, "alive": 20, "owners": 10, "dimensions": 8, "notes": 5, "largest": 4}
OF_FIELD = {  # where not any value of the type makes sense
    "label": st.integers(1, 9999).map("In [{}]".format) | TEXTS,
    "started_at": st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=ZONES),  # noqa: DTZ001
    "execution_count": maybe(st.integers(1, 9999)),
    "cell_id": maybe(SHORT.map(lambda name: name[:10]) | st.uuids().map(str)),
    "error": maybe(SHORT),
    "current_gpu": maybe(st.integers(0, 15)),
    "device": DEVICES,
    "backend": st.sampled_from(["cuda", "xpu", "nvml"]),
    "uuid": maybe(st.uuids().map(lambda found: f"GPU-{found}")),
    "place": st.sampled_from(["", "In [3]"]) | TEXTS,
    "unit": st.just("J"),
    **dict.fromkeys(["lineno", "hits", "blocks", "pid", "count"], st.integers(1, 1 << 20)),
    **dict.fromkeys(["unattributed_bytes", "unknown_rise_bytes", "context_bytes"], st.just(0) | SIZES),
    **dict.fromkeys(["unexplained", "between"], st.lists(st.tuples(DEVICES, CHANGES), max_size=2).map(tuple)),
}


def of_type(hint, most=2):
    """Any value of a type, as a field of a record has it; of a series so many at most."""
    options = get_args(hint)
    if hint in OF_TYPE:
        return OF_TYPE[hint]
    if is_dataclass(hint):
        return of_class(hint)
    if get_origin(hint) is Literal:
        return st.sampled_from(options)
    if get_origin(hint) in (Union, types.UnionType):
        return maybe(of_type(options[0]))
    if options[-1] is ...:
        many = st.lists(of_type(options[0]), max_size=most)
        return many.map(lambda points: tuple(sorted(points)) if hint == Timeline else tuple(points))
    return st.tuples(*map(of_type, options))


def of_class(kind, **fixed):
    """Any value of a class of records; with these fields as given."""
    if kind is ChildUsage:
        fixed = {"name": SHORT} | fixed
    if kind is KindTimeline:
        fixed = {"unit": st.sampled_from(["s", "allocations"])} | fixed
    if kind is OutOfMemory:
        fixed = {"device": st.just("cuda:0")} | fixed
    fields = {
        name: OF_FIELD[name] if name in OF_FIELD else of_type(hint, MOST.get(name, 2))
        for name, hint in types_of(kind).items()
        if name not in fixed
    }
    return st.builds(kind, **fields, **fixed)


def devices(index, *, attributed):
    return of_class(DeviceUsage, index=st.just(index), attributed=st.just(attributed))


GPUS = st.integers(0, 16).flatmap(
    lambda count: st.booleans().flatmap(
        lambda attributed: st.tuples(*(devices(index, attributed=attributed) for index in range(count)))
    )
)


def records(**fixed):
    """Any record of a cell; with these fields as given."""
    return of_class(CellRecord, **{"gpus": GPUS, **fixed})
