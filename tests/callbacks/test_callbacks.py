"""What the adapters share: nothing is imported that is not used, and what is missing is said."""

import pickle
import subprocess
import sys
import textwrap

import pytest
from two_ranks import DictStore

from ipygpulogger import callbacks
from ipygpulogger.cluster.torch_distributed import Job

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


NONE = {"__init__.py": "raise ModuleNotFoundError(name=__name__)"}  # as if it were not installed
WITHOUT = [
    *(
        (adapter, framework, NONE, f"needs {framework}, which is not installed: pip install {framework}")
        for adapter, framework in ADAPTERS.items()
    ),
    *(
        ("mem", "fastai", {"__init__.py": f"__version__ = {version!r}", "callback.py": lacks},
         f"needs fastai 2 or newer, not fastai {version}: pip install 'fastai>=2'")
        for version in ("0.7.0", "1.0.61")
        for lacks in ("", "import scipy_that_is_missing", "raise RuntimeError('an old torch')")
    ),
    *(  # Lightning before 2.0 has no `lightning.pytorch`
        ("lightning", "lightning", {"__init__.py": version},
         f"needs lightning.pytorch, which {found} does not have: pip install -U lightning")
        for version, found in (("__version__ = '1.9.5'", "lightning 1.9.5"), ("", "lightning"))
    ),
]  # fmt: skip


@pytest.mark.parametrize(("adapter", "framework", "files", "says"), WITHOUT)
def test_a_framework_that_will_not_do(adapter, framework, files, says, tmp_path):
    """Missing, too old or without the module: one sentence, which ends in the pip command that helps."""
    (tmp_path / framework).mkdir()
    for name, text in files.items():
        (tmp_path / framework / name).write_text(text)
    said = python(f"import ipygpulogger.callbacks.{adapter}", tmp_path).stderr.splitlines()[-1]
    assert said == f"ImportError: ipygpulogger.callbacks.{adapter} {says}"


@pytest.mark.parametrize(("adapter", "framework"), ADAPTERS.items())
def test_a_framework_that_is_broken_says_itself_why(adapter, framework, tmp_path):
    """Where the framework is there and lacks something else, its own error is the one that is seen."""
    (tmp_path / framework).mkdir()
    (tmp_path / framework / "__init__.py").write_text("import what_it_needs\n")
    said = python(f"import ipygpulogger.callbacks.{adapter}", tmp_path).stderr.splitlines()[-1]
    assert said == "ModuleNotFoundError: No module named 'what_it_needs'"


# -- the epochs of all ranks ---------------------------------------------------------------------------------

RANKS = 4


@pytest.fixture
def store():
    return DictStore()


@pytest.fixture
def trained(store, monkeypatch):
    """Run an epoch of a rank, of which no rank but 0 sees the others'; return what that rank has."""
    jobs, ranks = (
        [Job(rank, RANKS, store) for rank in range(RANKS)],
        [callbacks.Epochs() for _ in range(RANKS)],
    )
    monkeypatch.setattr(callbacks, "is_one_of_several", lambda: True)

    def epoch(rank, *numbers, measured=True):
        monkeypatch.setattr(callbacks, "post", jobs[rank].post)
        for number in numbers:
            ranks[rank].begin()
            if not measured:
                ranks[rank].scope.within(None)
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
