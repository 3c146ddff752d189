"""`ipygpulogger doctor --verify`: what is shown of checks that hold, are wrong, fail or are interrupted, and the exit status."""

import dataclasses
import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import refused
from terminal import Typed, on_a_terminal

from ipygpulogger.cli import main, verify
from ipygpulogger.verify.check import Check, Figure, Unchecked

MB = 2**20
RIGHT = Figure("RAM", "kept", "consumed", (31 * MB, 33 * MB), 32 * MB, 32 * MB, "exact")
UNCHECKED = Unchecked("cuda:0", "MIG slices", "there are none")
ABOUT = Figure("cuda:0", "LSTM", "needed", (200 * MB, 200 * MB), 190 * MB, 190 * MB, "about")
UPPER = {"exact": 12 * MB, "bounded": 16 * MB, "at least": None}  # bounds, by label


def wrong(label):
    """A figure with this label that excludes the truth."""
    return Figure("cuda:0", "of a library", "needed", (0, MB), 12 * MB, UPPER[label], label)


def steps(*found):
    """A check's run: each is found, or raised."""

    def run():
        was = gc.isenabled()
        try:
            for one in found:
                gc.disable()
                if isinstance(one, BaseException):
                    raise one
                yield one
        finally:
            if was:
                gc.enable()

    return run


@pytest.fixture
def checked(monkeypatch, capsys):
    """Run the command with these checks; its status and stdout."""

    def run(*quick, devices=list, facts=dict, words=()):
        checks = [Check(f"check {i}", one) for i, one in enumerate(quick)]
        monkeypatch.setattr(verify.ram, "checks", lambda: checks)
        monkeypatch.setattr(verify.device, "checks", devices)
        monkeypatch.setattr(verify.system, "facts", facts)
        status = main(["doctor", "--verify", *words])
        assert gc.isenabled()
        return status, capsys.readouterr().out

    return run


@pytest.mark.parametrize("label", UPPER)
def test_what_is_wrong_stands_again_at_the_end(checked, label):
    """Exit 1 where any figure is wrong; it is named again below the table, and the last line is the verdict."""
    status, out = checked(steps(RIGHT, wrong(label), UNCHECKED))
    lines = out.splitlines()
    assert (status, lines[-1]) == (1, "1 WRONG; 1 of 2 figures hold; 1 could not be checked")
    (again,) = [line for line in lines[lines.index("Wrong:") :] if "cuda:0, of a library: needed" in line]
    assert again.endswith(" B, in truth 0 to 1048576")
    assert lines.index("Not checked:") < lines.index("Wrong:")
    assert len([line for line in lines if line.endswith("WRONG")]) == 1
    assert "  cuda:0, MIG slices: there are none" in lines


@pytest.mark.parametrize(
    ("found", "status", "verdict"),
    [
        ((RIGHT, RIGHT), 0, "2 of 2 figures hold"),
        ((RIGHT, UNCHECKED), 0, "1 of 1 figures hold; 1 could not be checked"),
        ((UNCHECKED,), 2, "0 of 0 figures hold; 1 could not be checked"),
        ((RIGHT, ABOUT), 0, "1 of 1 figures hold; 1 estimated without a bound"),
        ((RIGHT, OSError("gone"), RIGHT), 1, "1 of the checks FAILED; 1 of 1 figures hold"),
    ],
)
def test_verdicts(checked, found, status, verdict):
    """What could not be checked is counted, and is no failure; a check that fails is one; no figure proves nothing."""
    said = checked(steps(*found))
    assert (said[0], said[1].splitlines()[-1]) == (status, verdict)


def fail():
    raise OSError("no driver")


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_what_fails_is_named(checked, words):
    """An error in a check, before the checks of devices, or of the facts: each by name, and the others run on."""
    odd = steps(RIGHT, ValueError("odd\x1b[2J"))
    status, out = checked(odd, steps(UNCHECKED), devices=fail, facts=fail, words=words)
    assert status == 1
    failed = {
        "check 0": "ValueError: odd\x1b[2J",
        "devices": "OSError: no driver",
        "system": "OSError: no driver",
    }
    if words:
        assert json.loads(out)["failed"] == failed
    else:
        assert "\x1b" not in out
        assert out.count(": the check failed: ") == len(failed)
        assert "3 of the checks FAILED; 1 of 1 figures hold; 1 could not be checked" in out


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_an_interrupt_shows_what_was_found(checked, words):
    """Ctrl-C within a check: 130 at once, everything restored, what was found so far, and where it stopped."""
    never = steps(AssertionError("it went on"))
    status, out = checked(steps(RIGHT), steps(RIGHT, KeyboardInterrupt()), never, devices=fail, words=words)
    verdict = json.loads(out)["verdict"] if words else out.splitlines()[-1]
    assert (status, verdict) == (130, "interrupted in check 1: 2 of 2 figures hold")


def test_quick(checked):
    """--quick: no check of a device."""
    status, out = checked(steps(RIGHT), devices=fail, words=["--quick"])
    assert (status, out.splitlines()[-1]) == (0, "1 of 1 figures hold")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--quick"], "--quick belongs to --verify: ipygpulogger doctor --verify --quick"),
        (["--estimate", "--json"], "--estimate belongs to --verify"),
        (["--verify", "--quick", "--estimate"], "ask for one of them"),
        (["--verify", "now"], "unrecognized arguments: now"),
    ],
)
def test_bad_words(words, says, capsys):
    """One sentence, and exit 2."""
    assert refused(["doctor", *words], capsys, says)


def test_json(checked, monkeypatch, tmp_path):
    """All that is known of each figure, and nothing that tells who the user is."""
    home, elsewhere = tmp_path / "home", tmp_path / "ada"
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(verify.getpass, "getuser", lambda: "ada")
    secret = OSError(f"{home / 'x'} and {elsewhere / 'y'}, in Canada")
    status, out = checked(
        steps(RIGHT, UNCHECKED, secret), facts=lambda: {"Python": str(home / "py")}, words=["--json"]
    )
    said = json.loads(out, parse_constant=pytest.fail)
    assert status == 1
    assert set(said) == {"facts", "figures", "unchecked", "failed", "interrupted_in", "verdict"}
    (right,) = said["figures"]
    assert right == {
        "where": "RAM",
        "case": "kept",
        "what": "consumed",
        "truth": [31 * MB, 33 * MB],
        "lo": 32 * MB,
        "hi": 32 * MB,
        "label": "exact",
        "unit": "B",
        "precision": 0,
        "is_wrong": False,
    }
    assert said["unchecked"] == [dataclasses.asdict(UNCHECKED)]
    assert said["failed"] == {"check 0": f"OSError: ~/x and {tmp_path / 'USER' / 'y'}, in Canada"}
    assert said["facts"] == {"Python": "~/py"}


def test_cells():
    """A row in MB, seconds or counts, with no "-0"; beside a wrong figure each byte is told below the table."""
    figure = Figure("", "", "time", (0.1, 0.1002), 0.1001, 0.1001, "exact", "s")
    assert verify._cells(figure) == ("time", "0.1001 s", "0.1001 ±0.0001 s", "exact", "ok")
    bound = Figure("", "", "needed", (0, 0), -1, None, "at least", precision=MB)
    assert verify._cells(bound) == ("needed", "≥0.00", "0.00", "at least ±1", "ok")
    assert verify._cells(ABOUT)[-1] == "-5.0%"
    assert verify._cells(RIGHT) == ("consumed", "32.00", "32.00 ±1", "exact", "ok")


# -- on a terminal, and in a pipe -----------------------------------------------------------------------------


@pytest.mark.linux("the truth is read from /proc")
def test_a_narrow_terminal():
    """In 80 columns: progress while it runs, no line that wraps, the verdict in colour unless NO_COLOR is set."""
    pytest.importorskip("pty")
    for no_color in "", "1":
        seen = on_a_terminal("doctor", "--verify", "--quick", columns=80, NO_COLOR=no_color)
        assert seen.status == 0, seen.text
        assert max(map(len, seen.text.splitlines())) <= 80
        assert ("32" in seen.screen.styles) == (not no_color)
        assert any("RAM that comes and goes" in state for state in seen.states)
        first, *_, last = seen.text.splitlines()
        assert first == "System:"
        assert " figures hold" in last
        assert "\x1b" not in seen.text


@pytest.mark.linux("the truth is read from /proc")
def test_ctrl_c_on_a_terminal():
    """130, the table so far, and no traceback of ours or of a child."""
    pytest.importorskip("pty")
    seen = on_a_terminal("doctor", "--verify", "--quick", typed=[Typed("RAM in nested scopes and threads")])
    assert seen.status == 130, seen.text
    assert seen.text.splitlines()[-1].startswith("interrupted in RAM in nested scopes and threads: ")
    assert "Traceback" not in seen.text


FIRST_CHECKS = """
import sys
from ipygpulogger.cli import main, verify
for module in verify.ram, verify.device:
    module.checks = lambda every=module.checks: every()[:2]
sys.exit(main(["doctor", "--verify", "--json"]))
"""


@pytest.mark.torch
def test_on_the_simulated_devices(kernel_env):
    """In a process of its own, which nobody has prepared: both devices are found, and their figures hold."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CHECKS], env=kernel_env, capture_output=True, text=True, check=False
    )
    said = json.loads(done.stdout)
    assert (said["failed"], [one for one in said["figures"] if one["is_wrong"]]) == ({}, [])
    assert done.returncode == 0
    assert {"RAM", "cuda:0", "cuda:1"} <= {one["where"] for one in said["figures"]}
