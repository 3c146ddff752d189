"""GPUMemTrace where no framework uses a GPU: it works, reads 0, and prints what fastai's printed."""

import pytest

from ipygpulogger.compat.gpu_mem_trace import GPUMemTrace, gpu_mem_trace


def answer():
    return 42


def test_without_a_gpu(gpu, capsys):
    """1.6 C12: without a GPU it reads 0, and prints the line all the same."""
    gpu.fault("nvml*", 9)
    mtrace = GPUMemTrace(ctx="foobar")
    mtrace.report("1st try")
    assert mtrace.is_running
    mtrace.stop()
    assert not mtrace.is_running
    assert capsys.readouterr().out == "△Used Peaked MB:      0      0 (foobar: 1st try)\n"
    assert gpu_mem_trace(answer)() == 42
    assert capsys.readouterr().out == "△Used Peaked MB:      0      0 (answer: exit)\n"


def test_silent_as_attribute_and_as_call(gpu, capsys):
    """1.6 C5: `mtrace.silent = True`, `mtrace.silent(True)`, `mtrace.silent()`, and reading it."""
    mtrace = GPUMemTrace()
    assert not mtrace.silent
    mtrace.silent = True
    assert mtrace.silent == True  # noqa: E712 - people write it so
    assert repr(mtrace.silent) == "True"
    mtrace.report()
    mtrace.report_n_reset()
    mtrace.silent(False)
    assert not mtrace.silent
    mtrace.silent()
    assert mtrace.silent
    mtrace.silent(silent=False)
    mtrace.report()
    mtrace.stop()
    assert capsys.readouterr().out == "△Used Peaked MB:      0      0\n"
    with GPUMemTrace(silent=True):
        pass
    assert capsys.readouterr().out == ""


def test_what_keeps_us_from_measuring_is_the_users_nothing(monkeypatch):
    """Where no scope can be opened a warning says so, and the traced code runs."""

    def refuse(_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("ipygpulogger.engine.scope.Scope.open", refuse)
    with pytest.warns(RuntimeWarning, match=r"answer is not measured.*Too many open files"):
        assert gpu_mem_trace(answer)() == 42


@pytest.mark.parametrize("thing", [int, 3, None])
def test_what_cannot_be_traced(thing):
    """A class or a number: one sentence instead of a surprise."""
    with pytest.raises(TypeError, match="gpu_mem_trace takes a function"):
        gpu_mem_trace(thing)
