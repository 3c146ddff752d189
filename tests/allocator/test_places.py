"""Which line a stack stands for, and which pass a block without a stack belongs to; nothing of torch is needed."""

import sys
import sysconfig
from itertools import pairwise
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.allocator.places import (
    Places,
    below_magics,
    frames_of,
    is_top,
    is_users,
    last_resort,
    stack_of,
    user_frame,
)
from ipygpulogger.allocator.replay import Block, Moment
from ipygpulogger.breakdown.kinds import BackwardPass, Kinds, TrainingHistory
from ipygpulogger.breakdown.rows import Breakdown

STDLIB, INSTALLED = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
OURS = sys.modules["ipygpulogger"].__file__


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/project/train.py", True),
        ("<ipython-input-4-abc>", True),
        ("/tmp/ipykernel_17/123.py", True),
        ("<timed exec>", False),
        ("<string>", False),
        ("<frozen importlib._bootstrap>", False),
        (f"{INSTALLED}/torch/nn/functional.py", False),
        (f"{STDLIB}/threading.py", False),
        (OURS, False),
    ],
)
def test_whose_code_it_is(file, users):
    """Cells and files that are not installed are the user's; ours is not, wherever it lies."""
    assert is_users(file) is users


def test_libraries_fold_into_the_line_that_called_them(monkeypatch):
    """The user's innermost line; without one, code from a text, then a library that is not torch."""
    torch = ModuleType("torch")
    torch.__file__ = f"{INSTALLED}/torch/__init__.py"
    monkeypatch.setitem(sys.modules, "torch", torch)
    linear, train = (f"{INSTALLED}/torch/nn/modules/linear.py", 125, "forward"), ("/me/train.py", 7, "step")
    loader = (f"{INSTALLED}/loader/worker.py", 3, "fetch")
    bootstrap = (f"{STDLIB}/threading.py", 1002, "_bootstrap")
    assert user_frame([linear, train, ("/me/main.py", 1, "<module>")]) == train
    assert user_frame([linear, bootstrap]) is None
    assert last_resort([linear, loader, bootstrap]) == loader
    assert last_resort([linear, ("<string>", 2, "<module>"), bootstrap]) == ("<string>", 2, "<module>")
    assert last_resort([("<frozen importlib._bootstrap>", 5, "_load"), loader]) == loader
    assert last_resort([bootstrap, (f"{STDLIB}/threading.py", 982, "run")]) == bootstrap
    assert last_resort([]) is None


@pytest.mark.parametrize(
    ("frame", "top"),
    [
        (("/me/train.py", 1, "<module>"), True),
        (("<ipython-input-4-abc>", 1, "<cell line: 1>"), True),
        (("/me/train.py", 7, "step"), False),
        (("/me/train.py", 7, "<lambda>"), False),
        ((f"{INSTALLED}/loader/worker.py", 1, "<module>"), False),
    ],
)
def test_the_lines_of_a_file_or_cell_itself(frame, top):
    """The user's, and not those of a function."""
    assert is_top(frame) is top


def test_frames_of_other_languages_are_left_out():
    """As a recording has them that the user began with the stacks of C++."""
    stack = [
        ("??", 0, "malloc"),
        ("", 0, ""),
        ("ceval.c", 0, "_PyEval_EvalFrame"),
        ("/me/train.py", 7, "step"),
        ("/me/run", 1, "f"),
    ]
    recorded = [{"filename": file, "line": line, "name": name} for file, line, name in stack]
    assert frames_of(recorded) == stack[3:]


def test_two_files_of_one_name_are_told_apart():
    """The second by its path; others keep their short name."""
    files = ["/a/x/train.py", "/b/x/train.py", "/a/data.py"]
    places = Places()
    assert [places.place_of((file, 3, "f")).place for file in files] == [
        "train.py:3",
        "/b/x/train.py:3",
        "data.py:3",
    ]
    assert places.place_of((__file__, 1, "")).text.startswith('"""Which line a stack stands for')


def test_the_stack_ends_at_the_users_outermost_line():
    """What called that is no code of the user's, and is not kept for every pass."""
    stack = stack_of(sys._getframe())
    assert [name for _, _, name in stack] == ["test_the_stack_ends_at_the_users_outermost_line"]


@pytest.mark.parametrize(
    ("lines", "above"),
    [
        (["%%time", "x = 1"], 1),
        (["", "%%gpulog --peak", "%%time", "", "x = 1"], 4),
        (["x = 1", "%%time"], None),
        (["%%prun -q", "x"], 1),
        (["%time x"], None),
        ([], None),
    ],
)
def test_the_body_of_a_timed_cell(lines, above):
    """It is compiled alone, so that its first line has the number 1."""
    assert below_magics(lines) == above


def passing(line, begin, end, *, inner=False, file="/me/train.py"):
    one = BackwardPass(((file, line, "step"),), retained=False, inner=inner)
    one.begin, one.end = {0: begin}, None if end is None else {0: end}
    one.walked = one.whole = True
    return one


def block(count, *, freed=None, frames=(), before=False, size_bytes=512, address=1024):
    return Block(address, size_bytes, count, frames, before, freed, lost=False)


def waiting(passes, count):
    found = Kinds(0, count, TrainingHistory((), tuple(passes)), {}).waiting(block(count))
    return found and found.stack[0][1]


def test_which_pass_a_block_without_a_stack_belongs_to():
    """To the one that was under way, of those within each other the innermost; to none if it may be either of two."""
    one, nested, other = passing(1, 10, 20), passing(2, 12, 15, inner=True), passing(3, 18, 30)
    library = passing(4, 12, 15, inner=True, file=f"{INSTALLED}/torch/utils/checkpoint.py")
    assert waiting([one], 10) is None
    assert waiting([one], 11) == 1
    assert waiting([one], 20) == 1
    assert waiting([one], 21) is None
    assert waiting([one, nested], 13) == 2
    assert waiting([one, nested], 16) == 1
    assert waiting([one, library], 13) == 1  # no line of the user's waits for it alone
    assert waiting([one, other], 19) is None
    assert waiting([one, other], 21) == 3
    assert waiting([passing(5, 40, None)], 99) == 5  # it has not ended


def test_rows_fold_and_add_up():
    """By kind and place, the largest first; what two passes may have allocated has no line."""
    frames = [{"filename": "/me/data.py", "line": 4, "name": "load"}]
    blocks = (
        block(1, before=True, size_bytes=4096),
        block(2, before=True, freed=9, size_bytes=8192, address=2048),
        block(11, frames=frames, freed=12, size_bytes=1024),
        block(12, frames=frames, freed=13, size_bytes=2048),
        block(19, freed=22, size_bytes=512),
        block(50, freed=60, size_bytes=512),
    )
    breakdown = Breakdown()
    breakdown._history = TrainingHistory((), (passing(1, 10, 20), passing(3, 18, 30)))
    rows = breakdown.rows("cuda:0", 0, Moment(blocks, sum(one.size_bytes for one in blocks), 50))
    assert [(row.kind, row.name, row.place, row.size_bytes, row.blocks) for row in rows] == [
        ("before", "freed since", "before the cell", 8192, 1),
        ("before", "no name found", "before the cell", 4096, 1),
        ("temporaries", "data.py:4", "data.py:4", 3072, 2),
        ("temporaries", "allocated without a Python stack", "", 1024, 2),
    ]


def test_a_workspace_is_recognised_by_its_size(monkeypatch):
    """cuBLAS says how large it is."""
    found = Kinds(0, 1, TrainingHistory(), {})
    assert found.label_of(block(1, size_bytes=8_519_680), []) == ("temporaries", "workspace of cuBLAS", False)
    assert found.label_of(block(1, size_bytes=8_519_680, freed=1), []).name == ""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    found = Kinds(0, 1, TrainingHistory(), {})
    assert found.label_of(block(1, size_bytes=16 * 8 * 1024), []).name == "workspace of cuBLAS"
    assert found.label_of(block(1, size_bytes=8_519_680), []).kind == "variables"


def test_names_that_cannot_be_looked_at_do_no_harm(monkeypatch):
    """The table is there without them, and says so."""

    def fails(*_):
        raise ValueError("no names")

    monkeypatch.setattr("ipygpulogger.breakdown.rows.names_at_end", fails)
    breakdown = Breakdown()
    breakdown.begin()
    breakdown.read_names(())
    assert "What was alive at the peak has no names: ValueError: no names." in breakdown.notes
    assert breakdown.rows("cuda:0", 0, Moment((block(1),), 512, 1))


TRAIN, MODEL, LIBRARY = "/me/train.py", "/me/model.py", f"{INSTALLED}/torch/nn/modules/module.py"


def called(*calls):
    """The calls of a stack, which is given outermost first."""
    return Places().calls_of([(file, line, name) for file, line, name in reversed(calls)])


def test_the_users_calls_that_led_to_a_stack():
    """The outermost first; libraries within are counted, and ours and what ran the user's code is not there."""
    found = called(
        (f"{STDLIB}/runpy.py", 88, "_run_code"),
        (TRAIN, 9, "<module>"),
        (OURS, 5, "measured"),
        (TRAIN, 4, "step"),
        (LIBRARY, 1, "_call_impl"),
        (MODEL, 7, "forward"),
        (LIBRARY, 2, "linear"),
    )
    assert (found.frames, found.library_frames) == (
        ("train.py:9", "train.py:4 step", "model.py:7 forward"),
        2,
    )
    assert called((LIBRARY, 1, "f")).frames == ()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_a_recursion_is_in_the_calls_once(lines):
    """No line twice, the first and the last stay, and each was really called by the one before it."""
    found = called(*((TRAIN, line, f"f{line}") for line in lines)).frames
    names = [f"train.py:{line} f{line}" for line in lines]
    assert len(set(found)) == len(found)
    assert (found[0], found[-1]) == (names[0], names[-1])
    assert set(pairwise(found)) <= set(pairwise(names))
