"""The batch size of code that failed."""

from arrays import Array, holding

from ipygpulogger.owners.batch import find_batch
from ipygpulogger.owners.release import drop_hidden_references


def test_a_loops_count_is_no_batch(shell, capsys):
    """`for batch, (X, y) in enumerate(loader)` counts batches; their size is elsewhere."""
    shell.run_cell("def train(batch):\n    bs = 64\n    1 / 0\ntrain(3)")
    error = shell.last_execution_result.error_in_exec
    assert find_batch(error, shell, []) == ("bs", 64)


def test_the_batch_is_found_nearest_to_the_failure(shell, capsys):
    """The failing function's own before its caller's, an object's attribute before a global."""
    shell.user_ns.update(Array=Array)
    shell.run_cell(
        "batch_size = 7\n"
        "class Args: pass\n"
        "args = Args(); args.bs = 5\n"
        "def outer(args):\n    inner()\n"
        "def inner():\n    raise RuntimeError('CUDA out of memory')\n",
        store_history=True,
    )

    def batch(source):
        shell.run_cell(source, store_history=True)
        return find_batch(shell.last_execution_result.error_in_exec, shell, [holding])

    assert batch("outer(args)") == ("bs", 5)
    assert batch("inner()") == ("batch_size", 7)
    assert batch("del batch_size, args\ninner()") is None
    drop_hidden_references(shell)
