"""Entry points are read once in a process, and parsed only where a distribution names our group."""

import sys
from types import SimpleNamespace

import pytest

from ipygpulogger.engine import frameworks
from ipygpulogger.engine.frameworks import Frameworks
from ipygpulogger.sources import Framework
from ipygpulogger.sources.contract import Notes

OURS = "[ipygpulogger.sources]\narena = example_source:Arena\n"


@pytest.fixture(autouse=True)
def fresh():
    """Nothing is known from before, nor afterwards."""
    frameworks._offered.cache_clear()
    yield
    frameworks._offered.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of distributions, before those that are installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing"), *sys.path])
    return tmp_path


def distribution(folder, name, text):
    info = folder / name
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    if text is not None:
        (info / "entry_points.txt").write_text(text)


def names():
    return [entry.name for entry in frameworks._offered()]


def test_one_that_fails_does_not_keep_out_another(monkeypatch):
    """Neither one that cannot be imported, nor one that is no framework; why is said, by name."""

    class Sound(Framework):
        name = "sound"

        def counters(self):
            return []

    def entry(name, load):
        return SimpleNamespace(name=name, value=f"{name}:It", load=load)

    entries = entry("absent", lambda: 1 / 0), entry("other", lambda: int), entry("sound", lambda: Sound)
    monkeypatch.setattr(frameworks, "_offered", lambda: entries)
    monkeypatch.setattr(frameworks, "_ADAPTERS", {})
    notes = Notes()
    found = Frameworks(notes)
    why = {"absent": "ZeroDivisionError: division by zero", "other": "TypeError: 0 is not a Framework"}
    assert [one.name for one in found.known()] == ["sound"]
    assert found.failed == why
    assert notes.take() == tuple(f"the source {name} of {name}:It fails: {why[name]}" for name in why)


@pytest.mark.parametrize("name", ["third-1.0.dist-info", "third.egg-info"])
def test_a_distribution_that_offers_one(folder, name):
    """Installed, or a checkout beside its egg-info."""
    distribution(folder, name, OURS)
    assert names() == ["arena"]


def test_those_that_offer_none_are_not_parsed(folder, monkeypatch):
    """With other entry points, with none, and with an egg-info that is a file."""
    distribution(folder, "a-1.0.dist-info", "[console_scripts]\na = b:c\n")
    distribution(folder, "b-1.0.dist-info", None)
    (folder / "c.egg-info").write_text("Name: c\n")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: 1 / 0)
    assert names() == []


def test_they_are_read_once(folder, monkeypatch):
    """A machine made anew, as in a fork's child, reads no file again."""
    distribution(folder, "a-1.0.dist-info", None)
    Frameworks(Notes())
    monkeypatch.setattr("os.listdir", lambda *_: 1 / 0)
    notes = Notes()
    Frameworks(notes)
    assert notes.take() == ()


def test_what_cannot_be_read_is_said_and_tried_again(folder, monkeypatch):
    """Without descriptors, for example; measuring goes on."""

    def refuse(*_):
        raise OSError(24, "Too many open files")

    notes = Notes()
    with monkeypatch.context() as patch:
        patch.setattr("os.listdir", refuse)
        Frameworks(notes)
    (said,) = notes.take()
    assert said.startswith("sources of other distributions cannot be looked for: OSError")
    distribution(folder, "third-1.0.dist-info", OURS)
    assert names() == ["arena"]
