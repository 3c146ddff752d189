"""`watch` on a real ipyparallel cluster of two engines: what `%px` cells needed, engine by engine."""

import os
import signal
import time

import pytest

from ipygpulogger.cluster import watch

pytestmark = pytest.mark.cluster
ipp = pytest.importorskip("ipyparallel", reason="ipyparallel is not installed, see nox -s cluster")

MB = 2**20
TRANSIENT = "block = bytearray({} << 20); block[::4096] = b'x' * len(block[::4096]); del block"
WAIT = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"
PATIENCE_S = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two engines, of which the last test kills one."""
    folder = str(tmp_path_factory.mktemp("profile"))
    quick = ["--HeartMonitor.period=200"]  # ms; an engine is known after its first heartbeat
    with ipp.Cluster(n=2, log_level=40, profile_dir=folder, controller_args=quick) as client:
        yield client


@pytest.fixture
def client(cluster, shell):
    """Its client, whose magics are in the shell."""
    cluster.activate()  # for all engines, those that join later too; `cluster[:]` are those of now
    view = shell.magics_manager.registry["ParallelMagics"].view
    view.block = True
    shell.user_ns["client"] = cluster
    return cluster


@pytest.fixture
def watching(client):
    """A watch of it."""
    with watch(client) as found:
        yield found


def run(shell, code):
    """Run a cell as a front end does."""
    return shell.run_cell(code, store_history=True)


def wait_until(happened):
    deadline_s = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline_s, "it does not happen"
        time.sleep(0.01)


def connection_file(client):
    """What another process, or another client, connects by."""
    at = client.cluster
    return f"{at.profile_dir}/security/ipcontroller-{at.cluster_id}-client.json"


def callbacks(client):
    """Those of every engine."""
    return client[:].apply_sync(_callbacks)


def _callbacks():
    from IPython import get_ipython

    events = get_ipython().events.callbacks
    return [len(events["pre_run_cell"]), len(events["post_run_cell"])]


def test_a_transient_shows_on_each_engine(shell, client, watching, capsys):
    """256 MB for a moment, within 2 MB on both; one table, and a record for each engine in their order."""
    run(shell, "%%px\n" + TRANSIENT.format(256))
    (group,) = watching.records
    assert group.label == f"In [{shell.execution_count - 1}]"
    assert [record.rank for record in group] == client.ids
    assert [record.worker for record in group] == [f"engine {i}" for i in client.ids]
    assert [record.pid for record in group] == client[:].apply_sync(os.getpid)
    for record in group:
        assert abs(record.gen.peaked_bytes - 256 * MB) < 2 * MB
        assert record.gen.peak.quality == "exact"
        assert (record.status, record.label) == ("ok", group.label)
        assert record.source.startswith("block = bytearray")
    assert not group.missing
    assert list(watching.history) == list(group)
    assert capsys.readouterr().out.count(repr(group)) == 1
    assert repr(watching) == "<IPyParallelWatch: running, 2 records>"


def test_a_line_and_targets(shell, client, watching):
    """`%px` is measured as `%%px` is; only the engines that were to run it have a row or are missed."""
    run(shell, "%px x = bytearray(b'x') * (64 << 20)")
    run(shell, f"%%px --targets {client.ids[0]}\ndel x")
    whole, one = watching.records
    assert [abs(record.gen.consumed_bytes - 64 * MB) < 2 * MB for record in whole] == [True, True]
    assert [record.rank for record in one] == client.ids[:1]
    assert one[0].gen.consumed_bytes < -62 * MB
    assert not one.missing
    client[:].execute("x = None", block=True)
    run(shell, "y = 1")
    assert len(watching.records) == 2  # neither a silent request nor a local cell is one


def test_not_waited_for(shell, client, watching, tmp_path):
    """`--noblock` shows no table before the work is done; then it is that of the cell that began it."""
    run(shell, "%%px --noblock\n" + WAIT.format(str(tmp_path / "go")) + TRANSIENT.format(64))
    began = f"In [{shell.execution_count - 1}]"
    run(shell, "x = 1")
    assert not watching.records
    (tmp_path / "go").touch()
    run(shell, "%pxresult")
    assert [group.label for group in watching.records] == [began]
    assert [abs(record.gen.peaked_bytes - 64 * MB) < 2 * MB for record in watching.records[0]] == [True, True]


def test_other_ways_to_send(shell, client, watching):
    """`%autopx` and a broadcast view have their tables; what the user sees of requests has nothing of ours."""
    run(shell, "%autopx")
    run(shell, TRANSIENT.format(64))
    run(shell, "%autopx")
    (group,) = watching.records
    assert [abs(record.gen.peaked_bytes - 64 * MB) < 2 * MB for record in group] == [True, True]
    shell.user_ns["view"] = client.broadcast_view()
    run(shell, "view.execute('z = 1', silent=False, block=True);")
    assert [record.rank for record in watching.records[-1]] == client.ids
    before = len(client.history)
    run(shell, "ar = client[:].execute('print(7)', silent=False, block=True)")
    assert len(client.history) == before + 2
    assert [one.strip() for one in shell.user_ns["ar"].stdout] == ["7", "7"]
    assert [one["outputs"] for one in shell.user_ns["ar"].metadata] == [[], []]


def test_several_requests_in_a_cell(shell, client, watching):
    """Each has a row of each engine, told apart by its code."""
    code = 'client[:].execute(\'keep = [bytearray(b"x") * ({} << 20)] + globals().get("keep", [])\', silent=False, block=True)'
    run(shell, f"{code.format(64)}; {code.format(32)};")
    (group,) = watching.records
    assert [record.rank for record in group] == [engine for engine in client.ids for _ in range(2)]
    for record in group:
        size_mb = 64 if "64 <<" in record.task else 32
        assert abs(record.gen.consumed_bytes - size_mb * MB) < 2 * MB
    client[:].execute("del keep", block=True)


def test_watched_twice(shell, client, watching):
    """The cell that begins a watch may be run again: there is one watch, and one table."""
    assert watch(client, report=False) is watching
    assert watch(client[0], report=False) is watching
    assert not watching.shows
    for other in (client.cluster, ipp):
        with pytest.raises(TypeError, match=r"watch\(\) takes an ipyparallel.Client"):
            watch(other)
    run(shell, "%px x = 1")
    assert [len(group) for group in watching.records] == [2]


def test_two_clients(shell, client, watching):
    """Each notebook has the records of its own cells alone, and stops for itself."""
    with ipp.Client(connection_file(client)) as other:
        theirs = watch(other)
        other[:].execute("x = 1", silent=False, block=True)
        client[:].execute("y = 1", silent=False, block=True)
        run(shell, "z = 1")
        assert [[record.source for record in one.records[-1]] for one in (watching, theirs)] == [
            ["y = 1"] * 2,
            ["x = 1"] * 2,
        ]
        theirs.stop()
        run(shell, "%px x = 1")
        assert [len(one.records) for one in (watching, theirs)] == [2, 1]


def test_stopping_leaves_nothing(shell, client):
    """Neither here nor in the engines; a second `stop` does nothing."""
    execute, before = ipp.DirectView.execute, callbacks(client)
    found = watch(client)
    assert ipp.DirectView.execute is not execute
    assert callbacks(client) == [[pre + 1, post + 1] for pre, post in before]
    found.stop()
    found.stop()
    assert ipp.DirectView.execute is execute
    assert callbacks(client) == before
    run(shell, "%px x = 1")
    assert not found.records


def test_a_closed_client_hurts_nobody(shell, client):
    """Cells go on, and the watch stops by itself."""
    execute = ipp.DirectView.execute
    other = ipp.Client(connection_file(client))
    found = watch(other)
    other.close()
    assert run(shell, "x = 1").success
    assert "stopped" in repr(found)
    assert ipp.DirectView.execute is execute
    found.stop()
    with pytest.raises(RuntimeError, match="closed"):
        watch(other)


def test_an_engine_without_the_package(shell, client, capsys):
    """It is said once, with the command that helps; the next watch measures it."""
    lacking = client.ids[1]
    client[lacking].execute(
        "import sys\n"
        "saved = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith('ipygpulogger')}\n"
        "sys.modules['ipygpulogger'] = None",
        block=True,
    )
    with watch(client) as found:
        for _ in range(2):
            run(shell, "%px x = 1")
            assert [record.rank for record in found.records[-1]] == client.ids[:1]
            assert found.records[-1].missing == (
                (f"engine {lacking}", "ipygpulogger is not installed there"),
            )
        said = capsys.readouterr().err
        assert said.count("%px %pip install ipygpulogger") == 1
    client[lacking].execute(
        "import sys; sys.modules.pop('ipygpulogger'); sys.modules.update(saved)", block=True
    )
    with watch(client) as found:
        run(shell, "%px x = 1")
        assert [record.rank for record in found.records[-1]] == client.ids


def test_in_a_notebook(client, kernel):
    """The table is one display of its own, as text and HTML, below the engines' output and the cell's report."""
    kernel.run(
        f"import ipyparallel\nclient = ipyparallel.Client({connection_file(client)!r})\nclient.activate()\n"
        "%load_ext ipygpulogger\nfrom ipygpulogger.cluster import watch\nw = watch(client)"
    )
    ran = kernel.run("%%px --no-stream\n'hello'")  # streaming, ipyparallel may lose what comes at once
    assert ran.status == "ok"
    *output, report, table = [one["data"] for one in ran.displays]
    assert ["hello" in one["text/plain"] for one in output] == [True, True]
    assert report["text/plain"].startswith("RAM: Consumed")
    assert {"text/plain", "text/html"} <= set(table)
    assert table["text/plain"] == kernel.value("repr(w.records[-1])")
    ran = kernel.run("%%px\n1 / 0")
    assert ran.status == "error"
    assert ran.displays[-1]["data"]["text/plain"] == kernel.value("repr(w.records[-1])")
    captured = kernel.run("%%capture out\n%px x = 1")
    assert len(captured.displays) == 1  # the cell's own report
    assert kernel.value("[len(w.records), len(out.outputs)]") == [3, 1]
    assert kernel.value("[r.worker for r in il.history if hasattr(r, 'worker')][-2:]") == [
        f"engine {i}" for i in client.ids
    ]
    assert not kernel.run("w.stop(); client.close()").displays[1:]


def test_an_engine_that_is_killed(shell, client, watching):
    """The other's report is right, the dead one is named, and so is one that joins: the next watch measures it."""
    run(shell, "%px x = 1")
    alive, dead = client.ids
    os.kill(watching.records[-1][1].pid, signal.SIGKILL)
    run(shell, "%%px\n" + TRANSIENT.format(256))  # fails where it is sent to the dead engine too
    wait_until(lambda: dead not in client.ids)
    run(shell, "x = 1")
    group = watching.records[-1]
    assert [record.rank for record in group] == [alive]
    assert abs(group[0].gen.peaked_bytes - 256 * MB) < 2 * MB
    assert group.missing == ((f"engine {dead}", "it died, or left the cluster"),)
    joined = client.cluster.start_engines_sync(n=1)
    client.wait_for_engines(2, timeout=PATIENCE_S, interactive=False)
    run(shell, "%px x = 1")
    ((who, why),) = watching.records[-1].missing
    assert (who, "it joined later" in why) == (f"engine {client.ids[1]}", True)
    watching.stop()
    with watch(client) as anew:
        run(shell, "%%px\n" + TRANSIENT.format(64))
        assert [record.rank for record in anew.records[-1]] == client.ids
        assert [abs(r.gen.peaked_bytes - 64 * MB) < 2 * MB for r in anew.records[-1]] == [True, True]
    client.cluster.stop_engines_sync(joined)
