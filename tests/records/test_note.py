"""Notes with a kind: a file holds the text alone, and a reader of the file has the kind all the same."""

import copy
import pickle
from dataclasses import replace

import pytest
from made import plain

from ipygpulogger import History
from ipygpulogger.blocks.measure import Measure
from ipygpulogger.notebook.enrichers import left_note, over_budget
from ipygpulogger.records import Note, NoteKind, Peak, RamUsage
from ipygpulogger.records.note import of_kind
from ipygpulogger.sources.system.ram_limit import MemoryLimit

MB = 2**20


def shared():
    """What is said of a task that ran beside another."""
    one = Measure("one", of_task=True)
    with Measure("other", of_task=True), one:
        pass
    return one.last.notes


def grown():
    """What is said of a cell that grew in each run."""
    history = History()
    for run in range(1, 4):
        record = plain(run * 9 * MB)
        gen = replace(record.gen, before_bytes=(run - 1) * 9 * MB)
        record = history.marked(replace(record, gen=gen))
        history.append(record)
    return record.notes


MADE = {
    NoteKind.OVER_BUDGET: over_budget(plain(9 * MB), "1MB"),
    NoteKind.STILL_OVER: over_budget(
        plain(gen=RamUsage(9 * MB, 9 * MB, Peak(9 * MB, 9 * MB, "exact"))), "1MB"
    ),
    NoteKind.LITTLE_LEFT: [
        left_note(MemoryLimit("a limit", "", 9, 8, memory)) for memory in ("RAM", "Address space")
    ],
    NoteKind.GREW: grown(),
    NoteKind.SHARED_WITH_TASKS: shared(),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_saved_note_has_its_kind_again(kind, tmp_path):
    """Whoever makes it, and whatever the file."""
    said = of_kind(MADE[kind], kind)
    assert said
    assert len(said) == len(MADE[kind])
    record = plain(notes=(*said, "Torch was not measured."))
    for name in ("a.jsonl", "a.csv"):
        History([record]).save(tmp_path / name)
        (loaded,) = History.load(tmp_path / name)
        assert loaded.notes == record.notes
        assert of_kind(loaded.notes, *NoteKind) == said
        assert {note.kind for note in of_kind(loaded.notes, *NoteKind)} == {kind}


def test_a_note_is_a_text():
    """Anywhere but where its kind decides; copies keep the kind."""
    note = Note(NoteKind.GREW, "grew in each of its last 3 runs: x")
    assert note == "grew in each of its last 3 runs: x"
    for same in (pickle.loads(pickle.dumps(note)), copy.deepcopy(note), Note.read(str(note))):
        assert (same, same.kind) == (note, NoteKind.GREW)
