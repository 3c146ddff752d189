"""The options of a logger: which there are, what each takes, and the sentence that refuses."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from IPython.core.completer import provisionalcompleter
from reports import run
from traitlets import TraitError

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine.machine import machine
from ipygpulogger.notebook.options import Options
from ipygpulogger.notebook.report import NOT_KEPT
from ipygpulogger.render import text
from ipygpulogger.sources.system import memray


@given(
    st.one_of(
        st.sampled_from(sorted(IPyGPULogger.class_traits(config=True))).flatmap(
            lambda name: st.sampled_from([name[:-1], name[::-1], f"{name}s", name.upper()])
        ),
        st.from_regex(r"[a-z]\w{0,12}", fullmatch=True),
    )
)
@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
def test_an_unknown_attribute_is_refused_as_an_option_is(shell, name):
    """il.bugdet = "1GB": the constructor's own TypeError, and nothing is set; each real option can be set."""
    assume(not hasattr(IPyGPULogger, name))
    il = IPyGPULogger()
    before = dict(vars(il)), il.trait_values(config=True)
    with pytest.raises(TypeError, match=f"no option '{name}'") as set_by_hand:
        setattr(il, name, "1GB")
    with pytest.raises(TypeError) as given_at_first:
        IPyGPULogger(**{name: "1GB"})
    assert str(set_by_hand.value) == str(given_at_first.value)
    assert (dict(vars(il)), il.trait_values(config=True)) == before
    for option, value in il.trait_values(config=True).items():
        setattr(il, option, value)


def test_configuration_is_obeyed_and_keywords_win(shell, capsys):
    """c.IPyGPULogger.* is the default of every logger; a keyword is the last word."""
    shell.config.IPyGPULogger.compact = True
    shell.config.IPyGPULogger.gc_collect = False
    assert IPyGPULogger().compact is True
    assert IPyGPULogger().gc_collect is False
    assert IPyGPULogger(compact=False).compact is False
    assert IPyGPULogger(False, True).gc_collect is True


def test_percent_config_changes_a_running_logger(shell, il, capsys):
    """It lists what each option takes; a change works on the next report; a bad value changes nothing."""
    run(shell, "%config IPyGPULogger")
    listed = capsys.readouterr().out
    for name, words in {
        "report": "['text', 'rich', 'metadata', 'none']",
        "devices": "['used', 'all']",
    }.items():
        assert f"IPyGPULogger.{name}=<Enum>\n" in listed
        assert f"Choices: any of {words}\n" in listed
    run(shell, "%config IPyGPULogger.compact = True")
    run(shell, "x = 1")
    assert capsys.readouterr().out.endswith(text.report(il.record, compact=True) + "\n")
    run(shell, "%config IPyGPULogger.report = 'loud'")
    assert il.report == "text"
    il.stop()
    run(shell, "%config IPyGPULogger.compact = False")
    assert il.compact is True  # a stopped logger is not found


class Several:
    """Compares as an array does: with no one answer."""

    __hash__ = None

    def __repr__(self):
        return "several"

    def __eq__(self, other):
        raise ValueError("the truth value of an array is ambiguous")


SEVERAL = Several()
BAD = {
    "compact": ["yes", None, [True], SEVERAL],
    "gc_collect": ["some"],
    "report": ["loud", None, 1],
    "devices": ["some", None],
    "metrics": ["energy", ("watts",), None, {"energy": 1}],
    "budget": ["ten parsecs", "10", 10, b"10GB"],
    "quiet": [*("10", 10, True, "", "0MB", "10 parsecs", "10MB 5MB", b"10MB", ("10MB", "1s"), "1m30s")],
    "log": ["run.csv", 3, "no/such/folder/run.jsonl"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD for value in BAD[name]], ids=repr)
def test_a_bad_value_is_refused_in_the_same_words_everywhere(shell, name, value):
    """By the check, in a call and in an assignment: a `ValueError` and a `TraitError`; nothing is set."""
    il = IPyGPULogger()
    before = il.trait_values(config=True)
    sentences = set()
    for refused in (
        lambda: Options.check({name: value}),
        lambda: IPyGPULogger(**{name: [] if value is None and name == "compact" else value}),
        lambda: setattr(il, name, value),
    ):
        with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
            refused()
        assert isinstance(error.value, TraitError)
        sentences.add(str(error.value).replace("[]", "None"))
    assert len(sentences) == 1
    assert sentences.pop().startswith(f"{name} takes " if name not in ("budget", "quiet", "log") else name)
    assert not machine().scopes.loggers
    assert il.trait_values(config=True) == before


@pytest.mark.parametrize("how", ["start", "attribute", "cell"])
def test_what_memray_would_say_is_known_to_lack_before_the_cell_runs(
    shell, capsys, monkeypatch, fresh_machine, how
):
    """One line with the command, above the cell's own output; once, and not in the report again."""
    monkeypatch.setattr(memray, "installed", lambda: False)
    il = shell.user_ns["il"] = IPyGPULogger(peak=how == "start").start()
    if how == "attribute":
        il.peak = True
    assert (memray.ABSENT in capsys.readouterr().out) == (how != "cell")
    for _ in range(2):
        run(shell, f"{'%%gpulog --peak' if how == 'cell' else ''}\nprint('the cell runs')")
    printed = capsys.readouterr().out
    assert printed.count(memray.ABSENT) == (how == "cell")
    if how == "cell":
        assert printed.index(memray.ABSENT) < printed.index("the cell runs")
    il.stop()


def test_that_metadata_is_not_kept_by_a_front_end_is_said_once(shell, capsys, fresh_machine):
    """As it starts, or is chosen; the records are in the history, and nothing is in the output."""
    il = shell.user_ns["il"] = IPyGPULogger(report="metadata").start()
    assert NOT_KEPT in capsys.readouterr().out
    run(shell, "x = 1")
    run(shell, "%%gpulog --lines\ny = 2")
    il.stop()
    il.start()
    il.report = "text"
    il.report = "metadata"
    assert capsys.readouterr().out.replace("No GPU", "") == ""
    assert len(il.history) == 2
    il.stop()


IMPORT = "from ipygpulogger import IPyGPULogger"
SET_WRONGLY = {
    "il.compact = 'maybe'": "BadOption: compact takes True or False, not 'maybe'",
    f"{IMPORT}\nIPyGPULogger(compct=True)": "UnknownOption: IPyGPULogger has no option 'compct' (did you mean 'compact'?)",
    "def f():\n    il.quiet = 3\nf()": "BadOption: quiet takes a size",
    "il.bugdet = '1GB'": "UnknownOption: IPyGPULogger has no option 'bugdet' (did you mean 'budget'?)",
}


@pytest.mark.parametrize("code", SET_WRONGLY)
def test_an_option_set_wrongly_is_one_line_not_a_traceback(shell, capsys, code):
    """By attribute or in a call, the cell fails with one line that says what the option takes."""
    shell.user_ns["il"] = IPyGPULogger()
    result = run(shell, code)
    assert not result.success
    (line,) = "".join(capsys.readouterr()).splitlines()
    assert line.startswith(SET_WRONGLY[code])


def test_the_tab_key_offers_what_users_need(shell):
    """Of an instance: its options, and what they call and read; every other attribute works, and the class has it."""
    il = IPyGPULogger()
    methods = {"start", "stop", "free", "owners"}
    values = {"data", "history", "lifetime_peak_bytes", "record", "running"}
    assert set(dir(il)) == {*IPyGPULogger.class_trait_names(config=True), *methods, *values}
    assert il.trait_names()
    assert il.observe
    assert "trait_names" in dir(IPyGPULogger)
    shell.user_ns["il"] = il
    for jedi in (True, False):
        shell.Completer.use_jedi = jedi
        with provisionalcompleter():
            offered = {one.text.rpartition(".")[2] for one in shell.Completer.completions("il.", 3)}
        assert offered == set(dir(il))


def test_the_nearest_option_is_told(shell):
    """A slip of the finger is answered with what was meant; a word like none of them is not."""
    il = IPyGPULogger()
    with pytest.raises(TypeError, match=r"no option 'bugdet' \(did you mean 'budget'\?\); it has budget,"):
        il.bugdet = "1GB"
    with pytest.raises(TypeError, match=r"no option 'colour'; it has budget,"):
        il.colour = True
