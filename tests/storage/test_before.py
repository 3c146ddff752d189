"""What an earlier version wrote is loaded and written again unchanged, and shown as it was.

Run it as a program (``PYTHONPATH=.:tests``) where a report is meant to change: it writes `shown.json` anew.
"""

import json
import warnings
from pathlib import Path

import pytest

from ipygpulogger import History
from ipygpulogger.notebook.options import RANKED_BY
from ipygpulogger.render import html, lines, summary, text

HERE = Path(__file__).parent / "written_before"


def written(name):
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def loaded(path):
    """The records of a file as JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what a notebook had no room for
        return json.loads(json.dumps(History.load(path).to_dicts()))


def shown(record):
    """Every report of a record."""
    return {
        "text": text.report(record),
        "html": html.report(record),
        "lines": lines.table(record.lines) if record.lines else "",
        "lines html": lines.html(record.lines) if record.lines else "",
    }


def overviews():
    """Every ranking of the session."""
    return {by: summary.summary(RECORDS, by) for by in RANKED_BY}


RECORDS = History.load(HERE / "session.jsonl")
SHOWN = json.loads((HERE / "shown.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "kept"),
    [("session.jsonl", "session.jsonl"), ("session.csv", "session.jsonl"), ("session.parquet", "session.jsonl"),
     ("session.ipynb", "kept.jsonl")],
)  # fmt: skip
def test_a_file_that_was_written_is_loaded_equal(name, kept):
    """Every field of every record, of each format that loses nothing; of a notebook what it keeps."""
    assert loaded(HERE / name) == written(kept)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_the_same_file_is_written(kind, tmp_path):
    """Byte for byte, but for parquet, which names the version of its writer."""
    RECORDS.save(tmp_path / f"again.{kind}")
    if kind == "parquet":
        assert loaded(tmp_path / "again.parquet") == written("session.jsonl")
    else:
        assert (tmp_path / f"again.{kind}").read_bytes() == (HERE / f"session.{kind}").read_bytes()


@pytest.mark.parametrize("index", range(len(RECORDS)))
def test_the_same_reports_are_made(index):
    """Text, HTML and the table of lines, to the character."""
    assert shown(RECORDS[index]) == SHOWN["records"][index]


def test_the_same_overviews_are_made():
    """Every ranking of `summary`."""
    assert overviews() == SHOWN["overviews"]


if __name__ == "__main__":
    reports = {"records": list(map(shown, RECORDS)), "overviews": overviews()}
    (HERE / "shown.json").write_text(json.dumps(reports, indent=1), encoding="utf-8")
