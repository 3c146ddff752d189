"""What SECURITY.md promises: nothing from a file is executed, sent or followed, and only what was named is written."""

import dataclasses
import getpass
import json
import os
import pickle
import platform
import re
import socket
import stat
import subprocess
import sys
import types
import warnings
from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal, Union, get_args, get_origin

import pytest
import yaml
from command_line import made, refused, saved
from made import plain

from ipygpulogger import History, IPyGPULogger
from ipygpulogger.analysis.group import Group, Missing
from ipygpulogger.cli import main
from ipygpulogger.cli.arguments import parse
from ipygpulogger.cli.report import Results
from ipygpulogger.notebook.panel import picture
from ipygpulogger.records import MIME, CellRecord
from ipygpulogger.records.process import ProcessRecord
from ipygpulogger.render import at_peak, html, lines, summary
from ipygpulogger.render.page import page
from ipygpulogger.runtime.errors import write_file
from ipygpulogger.storage.decode import types_of
from ipygpulogger.storage.formats import IN_METADATA, json_line
from ipygpulogger.storage.log import Log

LINKS = "is a link; name the file itself"


class Attack:
    """What a pickle runs where it is loaded: it creates a file, in place of worse."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


# -- nothing is executed, nothing is sent, nothing else is written -----------------------------------------

# In a process of its own, for an audit hook stays. It sees each call of Python's that leaves the process.
WATCHED = """
import json, os, sys
SENDS = ("socket.", "urllib.", "http.", "ftplib.", "smtplib.", "imaplib.", "webbrowser.", "telnetlib.", "poplib.")
RUNS = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "pickle.find_class", "pty.")
CHANGES = ("os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.rename")
HARMLESS = ("socket.gethostname",)
seen, opened, armed = [], [], []
def hook(event, args):
    if not armed:
        return
    if event.startswith(SENDS + RUNS + CHANGES) and event not in HARMLESS:
        seen.append([event, [str(one) for one in args]])
    elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
        opened.append(str(args[0]))
sys.addaudithook(hook)
"""
SESSION = """
import contextlib, io
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config(HistoryManager={"enabled": False})
shell = InteractiveShell.instance(config=config, ipython_dir=sys.argv[1])
armed.append(1)
with contextlib.redirect_stdout(io.StringIO()):
    for code in (
        "%load_ext ipygpulogger", "il.log = 'log.jsonl'", "x = bytearray(8 << 20)", "1 / 0", "il.history.rank()",
        *(f"%gpulog {word}" for word in ("status", "summary", "vars", "free", "doctor", "help", "measure 1", "fit")),
        "%%gpulog --lines\\nx = bytearray(9 << 20)", "%gpulog save saved.csv", "old = %gpulog load saved.csv",
        "%unload_ext ipygpulogger",
    ):
        result = shell.run_cell(code, store_history=True)
        assert (result.error_in_exec is None) == ("/ 0" not in code), (code, result.error_in_exec)
armed.clear()
"""
COMMANDS = """
import contextlib, io, warnings
from ipygpulogger.cli import main
warnings.simplefilter("ignore")
import pyarrow.parquet
armed.append(1)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for words in json.loads(sys.argv[1]):
        try:
            assert main(words) in (0, 1, 2)
        except SystemExit:
            pass
armed.clear()
"""
TELLS = "\nprint(json.dumps([seen, opened]))"


def watched(program, argument, folder):
    """What a program did that left the process: calls, and files opened for writing below no /proc and /dev."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED + program + TELLS, str(argument)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen, opened = json.loads(done.stdout.splitlines()[-1])
    kernel = ("/proc/", "/dev/", "/sys/")
    return seen, [name for name in opened if not name.startswith(kernel)]


def is_ours(event):
    """Whether a call gives a file that was written beside its name this name, or removes one that was tried."""
    name, words = event
    return name in ("os.rename", "os.remove") and Path(words[0]).name.startswith(".ipygpulogger.")


def test_a_session_sends_nothing_and_writes_what_was_named(tmp_path):
    """Loading, cells, every magic command and the doctor: no socket, no program, two files."""
    work = tmp_path / "work"
    work.mkdir()
    seen, opened = watched(SESSION, tmp_path / "ipython", work)
    assert [event for event in seen if not is_ours(event)] == []
    assert {Path(name).name for name in opened if ".ipygpulogger." not in name} == {"log.jsonl"}
    assert {one.name for one in work.iterdir()} == {"log.jsonl", "saved.csv"}


def test_what_watches_sees(tmp_path):
    """A connection, a program, a pickle and a file each leave a trace: the two tests around this one would fail."""
    program = """
import pickle, socket, subprocess
armed.append(1)
socket.socket().close()
subprocess.run(["true"])
pickle.loads(pickle.dumps(os.getcwd))
open("file", "w").close()
os.rename("file", "other")
armed.clear()
"""
    seen, opened = watched(program, "", tmp_path)
    assert [event for event, _ in seen if not event.startswith("os.posix")] == [
        "socket.__new__", "subprocess.Popen", "pickle.find_class", "os.rename",
    ]  # fmt: skip
    assert opened == ["file"]


def evil(folder):
    """Files that hold what would be run if anything of them were: pickles, calls, templates, tags of YAML."""
    attack = pickle.dumps(Attack(folder / "executed"))
    call = f"__import__('os').mkdir({str(folder / 'executed')!r})"
    words = (
        call,
        f"{{{{{call}}}}}",
        f"${{{call}}}",
        f"!!python/object/apply:os.mkdir [{folder / 'executed'}]",
    )
    records = [plain(source=word, label=word, error=word, notes=(word,), main_line=word) for word in words]
    names = {}
    for kind in ("jsonl", "csv", "parquet"):
        History(records).save(folder / f"words.{kind}", log_source=True)
        (folder / f"pickle.{kind}").write_bytes(attack)
        names |= dict.fromkeys([f"words.{kind}", f"pickle.{kind}"])
    cells = [
        {
            "cell_type": "code", "execution_count": 4, "id": "a", "source": word,
            "metadata": {IN_METADATA: {**record.to_dict(), "__reduce__": word, "py/object": word}},
            "outputs": [{"output_type": "display_data", "metadata": {"__class__": word},
                         "data": {MIME: {**record.to_dict(), "__class__": word, "py/reduce": word}}}],
        }
        for word, record in zip(words, records, strict=True)
    ]  # fmt: skip
    metadata = {
        "kernelspec": {"name": "../../evil", "display_name": call, "argv": [call]},
        "ipygpulogger": call,
    }
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    (folder / "words.ipynb").write_text(json.dumps(notebook))
    (folder / "pickle.ipynb").write_bytes(attack)
    (folder / "parameters.yaml").write_text(f"x: {words[3]}\n")
    return [*names, "words.ipynb", "pickle.ipynb"]


def pickled_parquet(folder):
    """A table whose column says that its type is in a pickle, which pyarrow before 14.0.1 loads."""
    import pyarrow as pa
    from pyarrow import parquet

    payload = pickle.dumps(Attack(folder / "executed"))
    says = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": payload}
    History([plain()]).save(folder / "good.parquet")
    table = parquet.read_table(folder / "good.parquet")
    fields = [pa.field(one.name, one.type, metadata=says) for one in table.schema]
    parquet.write_table(table.cast(pa.schema(fields)), folder / "typed.parquet")
    return "typed.parquet"


def test_nothing_of_a_file_is_executed(tmp_path):
    """Logs, tables and notebooks that hold code in every form: loaded, reported, compared, drawn, and no more."""
    names = [*evil(tmp_path), pickled_parquet(tmp_path)]
    commands = [["report", name, "--html", "page.html"] for name in names]
    commands += [["compare", name, "words.jsonl", "--all"] for name in names]
    commands += [
        ["run", "words.ipynb"],
        ["run", "words.ipynb", "-f", "parameters.yaml", "-p", "x", "__import__('os')"],
    ]
    before = {one.name for one in tmp_path.iterdir()}
    seen, opened = watched(COMMANDS, json.dumps(commands), tmp_path)
    assert [event for event in seen if not is_ours(event)] == []
    assert {Path(name).name for name in opened if ".ipygpulogger." not in name} == set()
    assert {one.name for one in tmp_path.iterdir()} - before == {"page.html"}


def test_an_older_pyarrow_is_refused(tmp_path, monkeypatch):
    """One that would load a pickle: one sentence with the command, before it sees the file."""
    import pyarrow as pa

    monkeypatch.setattr(pa, "__version__", "14.0.0")
    (tmp_path / "x.parquet").touch()
    with pytest.raises(ImportError, match=r"pip install 'ipygpulogger\[parquet\]'$"):
        History.load(tmp_path / "x.parquet")


@pytest.mark.parametrize("kind", ["jsonl", "ipynb"])
def test_no_depth_or_size_ends_the_process(tmp_path, kind):
    """Nested a hundred thousand times, numbers of a million digits, a text of ten megabytes: read or refused."""
    record = plain().to_dict()
    for text in (
        json_line(plain(source="x" * 10_000_000)),
        json.dumps(record).replace('"time_s": 0.5', '"time_s": 1' + "0" * 1_000_000),
        json.dumps(record).replace('"time_s": 0.5', '"time_s": 1e999999999'),
        json.dumps(record)[:-1] + ', "deep": ' + "[" * 100_000 + "]" * 100_000 + "}",
        json.dumps(record)[:-1] + ', "deep": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}",
    ):
        cell = '{"cells": [{"cell_type": "code", "execution_count": 4, "outputs": [{"data": {"%s": %s}}]}]}'
        path = tmp_path / f"log.{kind}"
        path.write_text(cell % (MIME, text) if kind == "ipynb" else text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                assert len(History.load(path)) <= 1
            except ValueError as error:
                assert len(str(error).splitlines()) == 1


# -- no link is followed -----------------------------------------------------------------------------------


@pytest.fixture
def linked(tmp_path, monkeypatch):
    """The folder, and by the name's end a link to a file that others need, and one to nothing."""
    monkeypatch.chdir(tmp_path)

    def link(end, *, dangling=False):
        target, name = tmp_path / f"precious{end}", tmp_path / f"link{end}"
        if not dangling:
            target.write_text("precious")
        name.symlink_to(target)
        return target, name

    return link


WRITERS = {
    "run --output": ".ipynb", "run --log": ".jsonl", "run --html": ".html",
    "report --html": ".html", "script --log": ".jsonl", "script --html": ".html",
}  # fmt: skip


@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.parametrize("option", WRITERS)
def test_no_command_follows_a_link(linked, capsys, option, dangling):
    """Each file that a command writes: a link there is refused before anything runs, and stays what it is."""
    Path("nb.ipynb").write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}))
    Path("it.py").write_text("open('ran', 'w')")
    saved(Path("log.jsonl"), made())
    name, word = option.split()
    target, link = linked(WRITERS[option], dangling=dangling)
    words = {
        "run": ["run", "nb.ipynb", word, link], "report": ["report", "log.jsonl", word, link],
        "script": ["run", word, link, "it.py"],
    }  # fmt: skip
    assert refused(words[name], capsys, f"{link} {LINKS}")
    assert link.is_symlink()
    assert target.exists() is not dangling
    assert dangling or target.read_text() == "precious"
    assert not Path("ran").exists()


@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.parametrize("end", [".jsonl", ".csv", ".parquet"])
def test_saving_follows_no_link(linked, shell, end, dangling):
    """`History.save`, `%gpulog save`, the option `log` and each line of a log; also a link that came later."""
    target, link = linked(end, dangling=dangling)
    with pytest.raises(OSError, match=LINKS):
        History([plain()]).save(link)
    if end == ".jsonl":
        with pytest.raises(ValueError, match=LINKS):
            Log(link)
        with pytest.raises(ValueError, match=LINKS):
            IPyGPULogger(log=link)
        log = Log(link.with_name("later.jsonl"))
        log.append(plain())
        log.path.unlink()
        log.path.symlink_to(target)
        with pytest.raises(OSError, match=LINKS):
            log.append(plain())
    assert link.is_symlink()
    assert target.exists() is not dangling
    assert dangling or target.read_text() == "precious"


def test_the_other_name_of_a_file_keeps_what_it_has(tmp_path):
    """A hard link: what is overwritten becomes another file, also the log that a run begins anew."""
    for number, write in enumerate([
        lambda path: History([plain()]).save(path),
        lambda path: write_file(path, "new"),
        lambda path: Results(path, log_source=False).started(),
    ]):  # fmt: skip
        precious, path = tmp_path / f"precious{number}", tmp_path / f"other{number}.jsonl"
        precious.write_text("precious")
        os.link(precious, path)
        write(path)
        assert precious.read_text() == "precious" != path.read_text()


def test_what_is_no_file(tmp_path, monkeypatch, capsys):
    """A folder is refused; into a device or a pipe is written, and it stays one; `/dev/stdout` is a link to one."""
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "log.jsonl", made())
    (tmp_path / "folder.html").mkdir()
    assert refused(["report", path, "--html", "folder.html"], capsys, "folder.html is a folder; name a file")
    monkeypatch.setattr(os, "access", lambda place, _: str(place) != "/dev")  # as for a user who is not root
    assert main(["report", str(path), "--html", os.devnull]) == 0
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    os.mkfifo("pipe.html")
    command = [sys.executable, "-m", "ipygpulogger", "report", path, "--html"]
    with subprocess.Popen([*command, "pipe.html"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        page = Path("pipe.html").read_bytes()
        writer.communicate()
    assert page.lower().startswith(b"<!doctype html>")
    assert stat.S_ISFIFO(Path("pipe.html").stat().st_mode)
    done = subprocess.run([*command, "/dev/stdout"], capture_output=True, check=True)
    assert b"<!doctype html>" in done.stdout.lower()


# -- text stays text; terminals, each field: tests/render/test_printable.py -------------------------------

EVIL = "\"'></title></style></svg></pre><script>alert(1)</script><img src=x onerror=alert(2)><a href=javascript:alert(3)>"


def filled(hint, number=0):
    """A value of a type, with the same hostile text wherever it takes one."""
    if dataclasses.is_dataclass(hint):
        return hint(**{name: filled(kind, at) for at, (name, kind) in enumerate(types_of(hint).items())})
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return options[0]
    if get_origin(hint) in (Union, types.UnionType):
        return filled(next(option for option in options if option is not types.NoneType), number)
    if get_origin(hint) is tuple:
        return (
            (filled(options[0]), filled(options[0], 1))
            if options[-1] is ...
            else tuple(filled(one, at + 1) for at, one in enumerate(options))
        )
    made_of = {
        str: EVIL,
        float: 0.5 + number,
        bool: True,
        datetime: datetime(2026, 1, 1, tzinfo=timezone.utc),
    }
    return made_of.get(hint, (9 + number) << 20)


class Read(HTMLParser):
    """The tags, attributes and words of markup."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words += data


@pytest.mark.parametrize("kind", [CellRecord, ProcessRecord])
def test_no_text_of_a_record_is_markup(kind):
    """Each drawing of HTML or SVG, with all fields hostile at once: no tag and no attribute comes of a text."""
    record = replace(filled(kind), current_gpu=0)
    peak = record.at_peak, record.peak_times_s, record.timeline
    found = [
        html.report(record), html.so_far(record), *html.line_and_body(record), lines.html(record.lines, record.notes),
        at_peak.html(*peak), summary.html([record] * 3), picture([record, record])[1],
        page(EVIL, [record, record], source=lambda _: EVIL, ranked=summary.html([record]), said=[EVIL]),
        record.out_of_memory._repr_html_(), record.timeline[0]._repr_html_(), record._repr_html_(),
    ]  # fmt: skip
    if kind is ProcessRecord:
        found.append(Group(EVIL, [record], [Missing(EVIL, EVIL)], [EVIL])._repr_html_())
    for markup in found:
        read = Read(markup)
        assert "img" not in read.tags
        assert read.tags.count("script") == markup.lower().startswith("<!doctype")
        assert not [name for name, _ in read.attributes if name.startswith("on")]
        assert not [value for _, value in read.attributes if (value or "").lower().startswith("javascript")]
    assert any("<script>alert(1)" in Read(markup).words for markup in found)


# -- what the pages say ------------------------------------------------------------------------------------


def test_what_an_issue_reveals(tmp_path):
    """The whole output that the forms ask for, made here: no name of host or user, no folder of this machine."""
    command = [sys.executable, "-m", "ipygpulogger", "doctor", "--verify", "--quick", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["figures"] or report["unchecked"]  # the truth of RAM is read from Linux's /proc
    places = (
        Path.home(),
        tmp_path,
        ROOT,
        sys.prefix,
        sys.base_prefix,
        sys.executable,
        f"/{getpass.getuser()}",
    )
    for name in (socket.gethostname(), platform.node(), *map(str, places)):
        assert len(name) < 3 or name not in done.stdout, name


ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_each_promise_names_a_test_that_there_is():
    """SECURITY.md: every file of tests and every test in its table."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    paths = list((ROOT / "tests").rglob("test_*.py"))
    assert set(re.findall(r"\btest_\w+\.py", text)) <= {path.name for path in paths}
    tests = "".join(path.read_text(encoding="utf-8") for path in paths)
    for name in set(re.findall(r"`(test_\w+)`", text)):
        assert f"def {name}(" in tests, name
    for row in re.findall(r"^\| \*\*.*$", text, re.MULTILINE):
        assert "test_" in row.split("|")[2], row


@pytest.mark.parametrize("form", FORMS, ids=[form.stem for form in FORMS])
def test_issue_forms(form):
    """What GitHub asks of a form: a name, a description, a body with ids of its own; each asks for the figures."""
    found = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.stem == "config":
        assert found.keys() == {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= found.keys()
    fields = {one["id"]: one for one in found["body"]}
    assert len(fields) == len(found["body"])
    assert all(one["type"] in ("textarea", "input") and one["attributes"]["label"] for one in fields.values())
    words = re.search(r"`ipygpulogger (doctor .*)`", fields["verify"]["attributes"]["label"])[1].split()
    assert vars(parse(words)) | {"verify": True, "json": True} == vars(parse(words))
