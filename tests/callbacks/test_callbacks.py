"""What the adapters share: nothing is imported that is not used, and what is missing is said."""

import pickle
import subprocess
import sys
import textwrap

import pytest
from two_ranks import DictStore, job

from ipygpulogger import callbacks

ADAPTERS = {"mem": "fastai", "lightning": "lightning", "transformers": "transformers", "keras": "keras"}


def python(program, *path):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={"PYTHONPATH": ":".join(map(str, path))} if path else None,
    )


def test_the_folder_imports_no_framework():
    """`import ipygpulogger.callbacks` brings in no framework; each adapter is a file of its own."""
    program = """
        import sys, ipygpulogger.callbacks, ipygpulogger.blocks.watch_epochs
        print({"torch", "fastai", "lightning", "transformers", "keras", "numpy"} & set(sys.modules))
    """
    assert python(program).stdout == "set()\n"


@pytest.mark.parametrize(("adapter", "framework"), ADAPTERS.items())
def test_a_framework_that_is_missing_is_named_with_the_command(adapter, framework):
    """Where the framework is not installed, its adapter says so in one sentence that ends in the pip command."""
    program = f"""
        import sys
        sys.modules[{framework!r}] = None  # as if it were not installed
        import ipygpulogger.callbacks.{adapter}
    """
    said = python(program).stderr.splitlines()[-1]
    name = f"ipygpulogger.callbacks.{adapter}"
    assert said == f"ImportError: {name} needs {framework}, which is not installed: pip install {framework}"


@pytest.mark.parametrize(("adapter", "framework"), ADAPTERS.items())
def test_a_framework_that_is_broken_says_itself_why(adapter, framework, tmp_path):
    """Where the framework is there and lacks something else, its own error is the one that is seen."""
    (tmp_path / framework).mkdir()
    (tmp_path / framework / "__init__.py").write_text("import what_it_needs\n")
    said = python(f"import ipygpulogger.callbacks.{adapter}", tmp_path).stderr.splitlines()[-1]
    assert said == "ModuleNotFoundError: No module named 'what_it_needs'"


@pytest.mark.parametrize("version", ["0.7.0", "1.0.61"])
@pytest.mark.parametrize("lacks", ["", "import scipy_that_is_missing", "raise RuntimeError('an old torch')"])
def test_fastai_1_is_named_as_what_is_too_old(version, lacks, tmp_path):
    """With fastai 1 installed the adapter says that fastai 2 is needed, whatever fastai 1 itself lacks here."""
    (tmp_path / "fastai").mkdir()
    (tmp_path / "fastai" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (tmp_path / "fastai" / "callback.py").write_text(lacks)  # a package in fastai 2
    said = python("import ipygpulogger.callbacks.mem", tmp_path).stderr.splitlines()[-1]
    needs = f"needs fastai 2 or newer, not fastai {version}: pip install 'fastai>=2'"
    assert said == f"ImportError: ipygpulogger.callbacks.mem {needs}"


@pytest.mark.parametrize("version", ["__version__ = '1.9.5'", ""])
def test_a_framework_without_the_module_is_not_called_missing(version, tmp_path):
    """Lightning before 2.0 is installed, but `lightning.pytorch` is not in it: that is what is said."""
    (tmp_path / "lightning").mkdir()
    (tmp_path / "lightning" / "__init__.py").write_text(version)
    said = python("import ipygpulogger.callbacks.lightning", tmp_path).stderr.splitlines()[-1]
    found = "lightning 1.9.5" if version else "lightning"
    needs = f"needs lightning.pytorch, which {found} does not have: pip install -U lightning"
    assert said == f"ImportError: ipygpulogger.callbacks.lightning {needs}"


# -- the epochs of all ranks ---------------------------------------------------------------------------------

RANKS = 4


@pytest.fixture
def store():
    return DictStore()


@pytest.fixture
def trained(store, monkeypatch):
    """Run an epoch of a rank, of which no rank but 0 sees the others'; return what that rank has."""
    jobs, ranks = (
        [job(rank, store, RANKS) for rank in range(RANKS)],
        [callbacks.Epochs() for _ in range(RANKS)],
    )
    monkeypatch.setattr(callbacks, "is_one_of_several", lambda: True)

    def epoch(rank, *numbers, measured=True):
        monkeypatch.setattr(callbacks, "post", jobs[rank].post)
        for number in numbers:
            ranks[rank].begin()
            if not measured:
                ranks[rank].within(None)
            ranks[rank].end(number, None)
        return ranks[rank]

    return epoch


def test_a_group_for_each_epoch(trained, store):
    """On rank 0, as soon as all have sent it; rank 0 waits for nobody before the end."""
    names = [0, 1, 0]  # the last of a second fit
    for before, name in enumerate(names):
        assert len(trained(0, name).ranks) == before  # the others are behind
        for rank in range(1, RANKS):
            assert trained(rank, name).ranks == []
    trained(0).finish()
    assert [group.label for group in trained(0).ranks] == [f"epoch {name}" for name in names]
    assert [[record.rank for record in group] for group in trained(0).ranks] == [[0, 1, 2, 3]] * 3
    assert not store


def test_a_rank_that_stops_is_missing_from_each_epoch_after_it(trained):
    """And one whose epoch was not measured from that one; a copy has what was complete."""
    for number in range(3):
        for rank in range(RANKS):
            if (rank, number) not in {(2, 1), (2, 2)}:
                trained(rank, number, measured=(rank, number) != (3, 0))
    copy = pickle.loads(pickle.dumps(trained(0)))
    trained(0).finish(0.05)
    missing = [[one.who for one in group.missing] for group in trained(0).ranks]
    assert missing == [["rank 3"], ["rank 2"], ["rank 2"]]
    assert trained(0).ranks[-1].missing[0].why == "no answer by the end of the training"
    copy.finish()
    assert (len(copy.ranks), len(copy.history)) == (1, 3)


def test_one_process_has_no_groups():
    """Nothing is sent."""
    alone = callbacks.Epochs()
    alone.begin()
    assert alone.end(0, None).label == "epoch 0"
    alone.finish()
    assert alone.ranks == []
