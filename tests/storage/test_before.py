"""What an earlier version wrote is loaded, whatever fields it has, and shown."""

import json
import warnings
from pathlib import Path

import pytest

from ipygpulogger import History
from ipygpulogger.notebook.options import RANKED_BY
from ipygpulogger.render import html, lines, summary, text

HERE = Path(__file__).parent / "written_before"
WRITTEN = [json.loads(line) for line in (HERE / "session.jsonl").read_text(encoding="utf-8").splitlines()]


def check(now, written):
    """Every value that was written is as it was; a field that no longer exists is ignored."""
    if isinstance(now, dict) and isinstance(written, dict):
        for name in now.keys() & written.keys():
            check(now[name], written[name])
    elif isinstance(now, list):
        for pair in zip(now, written, strict=True):
            check(*pair)
    else:
        assert now == written


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "ipynb"])
def test_an_old_file_is_loaded_and_shown(kind):
    """Every record of each format; with every figure, but for a notebook, which has not room for all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what a notebook had no room for
        records = History.load(HERE / f"session.{kind}")
    assert [record.time_s for record in records] == [written["time_s"] for written in WRITTEN]
    if kind != "ipynb":
        check(json.loads(json.dumps(records.to_dicts())), WRITTEN)
    for record in records:
        assert text.report(record)
        assert html.report(record)
        assert lines.table(record.lines)
    for by in RANKED_BY:
        assert summary.summary(records, by)
