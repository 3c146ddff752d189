"""What a cell's outputs are in the end, in a real kernel: the user's as without us, then the report, last."""

import pytest
from kernels import SOON, rich
from outputs import MIME, saved, shown

EMPTY = {"text/html": ""}
OUTPUTS = ("stream", "display_data", "execute_result", "error")


pytestmark = pytest.mark.kernel(shared=True, begin=[SOON], around=rich)


def is_live(ran):
    """Whether its figures so far are shown."""
    return any(
        m["msg_type"] == "display_data" and " s so far" in m["content"]["data"].get("text/plain", "")
        for m in ran.messages
    )


def long_cell(kernel, code, *, live=True):
    """A cell that is shown while it waits for the file `go`."""
    asked = kernel.send(code)
    if live:
        kernel.wait_until(asked, is_live)
    kernel.go.touch()
    return kernel.wait(asked)


def ends_with_the_report(ran):
    """The place of the figures so far is emptied, then the report comes, once; nothing of the cell comes after."""
    sent = [m for m in ran.messages if m["msg_type"] in (*OUTPUTS, "update_display_data")]
    assert sent[-1]["msg_type"] == "display_data"
    assert set(sent[-1]["content"]["data"]) == {"text/plain", "text/html", MIME}
    assert "display_id" not in sent[-1]["content"]["transient"]
    assert sum(MIME in m["content"].get("data", {}) for m in sent) == 1
    if is_live(ran):
        assert sent[-2]["msg_type"] == "update_display_data"
        assert sent[-2]["content"]["data"] == EMPTY
    return shown(saved(ran.messages))


WARNS, SHOWN_HTML = "WARNING:root:", "<IPython.core.display.HTML object>"
DIVIDED = "error", "ZeroDivisionError"
PRINTS = {
    "print": ("print('a')", "print('b')", [("stdout", "a\nb\n")]),
    "print, unflushed": ("print('a', flush=True)", "sys.stdout.write('b');", [("stdout", "a\nb")]),
    "stderr": ("print('a', file=sys.stderr)", "print('b', file=sys.stderr)", [("stderr", "a\nb\n")]),
    "both": (
        "print('a', flush=True)",
        "print('b', file=sys.stderr, flush=True); print('c')",
        [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n")],
    ),
    "logging": ("logging.warning('a')", "logging.warning('b')", [("stderr", f"{WARNS}a\n{WARNS}b\n")]),
    "display": ("display('a')", "display(HTML('b'))", [("display", "'a'"), ("display", SHOWN_HTML)]),
    "result": ("print('a')", "'b'", [("stdout", "a\n"), ("execute", "'b'")]),
    "an updated display": (
        *("display('a', display_id='x')", "update_display('b', display_id='x')"),
        [("display", "'b'")],
    ),
    "magic": ("!echo a", "!echo b", [("stdout", "a\r\nb\r\n")]),
    "failed": ("print('a')", "1 / 0", [("stdout", "a\n"), DIVIDED]),
    "print, failed": ("print('a')", "print('b'); 1 / 0", [("stdout", "a\nb\n"), DIVIDED]),
    "await": ("print('a')\nawait asyncio.sleep(0)", "print('b')", [("stdout", "a\nb\n")]),
    "nothing": ("x = 1", "x = 2", []),
}


@pytest.mark.parametrize(("before", "after", "expected"), PRINTS.values(), ids=PRINTS)
@pytest.mark.parametrize("long", [True, False], ids=["long", "short"])
def test_each_kind_of_output(kernel, before, after, expected, long):
    """Whatever a cell puts out before and after the figures so far came: it is all there, then the report."""
    wait = "wait_for(go)" if long else ""
    ran = long_cell(kernel, f"{before}\n{wait}\n{after}", live=long)
    found = ends_with_the_report(ran)
    label = f"In [{ran.reply['execution_count']}]"
    assert found == [*expected, ("report", label)]


@pytest.mark.parametrize("end", ["", "\\r"], ids=["dots", "rewritten"])
def test_a_line_in_pieces_is_never_cut(kernel, end):
    """A line that grows, or is rewritten as progress bars are: no display comes into the middle of it."""
    pieces = f"for i in range(40): print(i, end='{end}', flush=True); time.sleep(0.01)"
    ran = long_cell(kernel, f"{pieces}\nprint()", live=False)
    assert len(saved(ran.messages)) == 2
    (stream, text), (kind, _) = ends_with_the_report(ran)
    assert (stream, kind) == ("stdout", "report")
    assert text.count("39") == 1


def test_a_thread_prints_after_the_end(kernel):
    """What it prints while the cell runs stands above the report, and what it prints later below."""
    ran = long_cell(
        kernel,
        "def later():\n"
        "    print('a', flush=True); wait_for(go); print('b', flush=True)\n"
        "    wait_for(go + '2'); print('c', flush=True); open(go + '3', 'w').close()\n"
        "thread = threading.Thread(target=later); thread.start()\n"
        "wait_for(go); time.sleep(0.2)",
    )
    assert ends_with_the_report(ran)[0] == ("stdout", "a\nb\n")
    kernel.go.with_name("go2").touch()
    kernel.wait_for(kernel.go.with_name("go3").exists)
    assert MIME not in str(kernel.run("thread.join()").displays[:-1])


# -- clear_output ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("long", [True, False], ids=["long", "short"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('a'); clear_output(); print('b')", [("stdout", "b\n")]),
        ("print('a'); clear_output(wait=True); print('b')", [("stdout", "b\n")]),
        ("print('a'); clear_output(wait=True); display('b')", [("display", "'b'")]),
        ("print('a'); clear_output(wait=True); 'b'", [("execute", "'b'")]),
        ("print('a'); clear_output(wait=True); 1 / 0", [("error", "ZeroDivisionError")]),
        ("print('a'); clear_output(wait=True)", [("stdout", "a\n")]),
        ("print('a'); clear_output()", []),
        ("print('a'); clear_output(wait=True); clear_output()", []),
        ("for i in range(3): print(i); clear_output(wait=True)", [("stdout", "2\n")]),
        ("for i in range(3): display(i); clear_output(wait=True)", [("display", "2")]),
        ("for i in range(3): clear_output(wait=True); display(i)", [("display", "2")]),
    ],
)
def test_what_is_cleared_is_what_the_user_clears(kernel, code, expected, long):
    """As without us: a clear that waits for an output that the cell never makes does not take the last away."""
    ran = long_cell(kernel, f"{'wait_for(go)' if long else ''}\n{code}", live=long)
    sent = [m for m in ran.messages if m["msg_type"] in OUTPUTS]
    assert MIME in sent[-1]["content"]["data"]
    assert [what for what in shown(saved(ran.messages)) if what[0] != "report"] == expected
    assert shown(saved(ran.messages))[-1][0] == "report"


@pytest.mark.parametrize("report", ["text", "none"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('a'); clear_output(wait=True); print('b')", "b\n"),
        ("print('a'); clear_output(wait=True)", "a\n"),
        ("for i in range(3): print(i); clear_output(wait=True)", "2\n"),
    ],
)
def test_a_printed_report_clears_nothing_either(kernel, report, code, expected):
    """report="text": the cell's last output stays above the report."""
    kernel.run(f"il.stop(); il = IPyGPULogger(report={report!r}).start()", silent=True)
    (kind, text), *others = shown(saved(kernel.run(code).messages))
    assert (kind, others) == ("stdout", [])
    assert text.startswith(expected)
    assert text[len(expected) :].startswith("RAM: Consumed") == (report == "text")
    assert text.count("RAM: Consumed") == (report == "text")


# -- %%capture and its siblings --------------------------------------------------------------------------


@pytest.mark.parametrize("long", [True, False], ids=["long", "short"])
def test_a_capture_has_what_it_has_without_us(kernel, long):
    """%%capture: the user's own outputs alone; the report with the totals is under the cell."""
    wait = "wait_for(go)" if long else ""
    ran = long_cell(
        kernel,
        f"%%capture inner\nprint('mine')\n{wait}\ndisplay('this')\nblock = b'x' * (64 << 20)",
        live=long,
    )
    number = ran.reply["execution_count"]
    assert ends_with_the_report(ran) == [("report", f"In [{number}]")]
    assert kernel.value("[o.data for o in inner.outputs]") == [{"text/plain": "'this'"}]
    assert kernel.value("[inner.stdout, inner.stderr]") == ["mine\n", ""]
    assert 60 << 20 < kernel.value("il.record.gen.consumed_bytes") < 70 << 20
    kernel.run("del block", silent=True)


# -- an output widget, two loggers, and saved notebooks ---------------------------------------------------


def test_no_update_comes_after_the_report(kernel):
    """However close the end of a cell is to the moment at which its figures so far are due."""
    for i in range(20):
        ran = kernel.run(f"time.sleep({0.09 + 0.001 * i})")
        assert ends_with_the_report(ran) == [("report", f"In [{ran.reply['execution_count']}]")]
