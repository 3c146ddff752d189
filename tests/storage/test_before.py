"""What the last commit before the packages wrote and showed: the same values are loaded, the same reports made."""

import json
import re
import sys
from pathlib import Path

import pytest

from ipygpulogger import History

HERE = Path(__file__).parent / "written_before"
sys.path.insert(0, str(HERE))
import write  # noqa: E402 - the program that wrote it

WRITTEN = [json.loads(line) for line in (HERE / "session.jsonl").read_text(encoding="utf-8").splitlines()]
# Since then the card of a failed allocation has less padding, so that in one report another remark fits.
PLAINER = {  # remarks that were reworded since
    "padding:1px 0 1px 9px": "padding:0 9px",
    "nobody tells which process uses it": "per-process usage unavailable",
    "outside the allocator, nobody tells whose": "outside the allocator, owner unknown",
    "nobody tells how its memory is used": "its memory use is unavailable",
}
_shown = (HERE / "shown.json").read_text(encoding="utf-8")
for _was, _is in PLAINER.items():
    _shown = _shown.replace(_was, _is)
_shown = re.sub(r' aria-label=\\"[^"]*\\"', "", _shown)  # a line had a second wording for screen readers
SHOWN = json.loads(_shown)
RECORDS = list(History.load(HERE / "session.jsonl"))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_file_that_was_written_is_loaded_equal(kind):
    """Every field of every record, of each format that loses nothing."""
    assert write.loaded(HERE / f"session.{kind}") == WRITTEN


def test_a_notebook_that_was_saved_is_loaded_equal():
    """What a notebook keeps of each record is read as it was."""
    kept = (HERE / "kept.jsonl").read_text(encoding="utf-8").splitlines()
    assert write.loaded(HERE / "session.ipynb") == list(map(json.loads, kept))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_the_same_file_is_written(kind, tmp_path):
    """Byte for byte, but for parquet, which names the version of its writer."""
    History(RECORDS).save(tmp_path / f"again.{kind}")
    if kind == "parquet":
        assert write.loaded(tmp_path / "again.parquet") == WRITTEN
    else:
        assert (tmp_path / f"again.{kind}").read_bytes() == (HERE / f"session.{kind}").read_bytes()


@pytest.mark.parametrize("index", range(len(RECORDS)))
def test_the_same_reports_are_made(index):
    """Text, HTML and the table of lines, to the character."""
    assert write.shown(RECORDS[index]) == SHOWN["records"][index]


def test_the_same_overviews_are_made():
    """Every ranking of `summary`; since then its columns are as wide as what is in them."""
    made, shown = write.overviews(RECORDS), SHOWN["overviews"]
    assert [made[by].replace(" ", "") for by in made] == [shown[by].replace(" ", "") for by in made]
