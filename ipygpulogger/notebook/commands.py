"""What the commands of ``%gpulog`` that few sessions need do: a measured statement, a fit, files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..engine.machine import importing, machine
from ..engine.scope import Scope, measured_now
from ..records import Measurement
from ..render.headline import headline
from ..runtime.errors import write_file
from ..runtime.shell import cells_behind
from ..sources import Unavailable
from .options import FAILED, RANKED_BY

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from ..analysis.fit import Headroom
    from ..storage.history import History
    from .logger import IPyGPULogger


class Statement:
    """A statement of the user's that runs as a cell does, but for its value: nothing keeps or shows it."""

    def __init__(self, shell: Any, text: str, *, reset_peaks: bool) -> None:
        """Compile it, and begin to measure; `Unavailable` where nothing can be measured."""
        __tracebackhide__ = True
        code, count = shell.transform_cell(text), shell.execution_count
        number = next((one for _, one in cells_behind(sys._getframe()) if one is not None), count)
        file = shell.compile.cache(code, number)  # so that a traceback shows the line
        tree = shell.transform_ast(shell.compile.ast_parse(code, file))
        self._shell, self._code = shell, shell.compile(tree, file, "exec")
        self._scope = Scope(reset_peaks=reset_peaks).open()

    def run(self) -> None:
        """Run it, and end the measurement."""
        __tracebackhide__ = True
        try:
            exec(self._code, self._shell.user_global_ns, self._shell.user_ns)  # noqa: S102
        finally:
            self._scope.close()

    def line(self) -> str:
        """Return what it used."""
        try:
            return " · ".join(map(str, headline(self._scope.result(Measurement, ""))))
        except Unavailable as reason:
            return f"It ran, and is not measured: {reason}"


def fit(logger: IPyGPULogger, count: int | None, name: str | None) -> tuple[str, str]:
    """Return the page of a fit, as text and as HTML."""
    with importing():
        from ..analysis.fit import RAM, Headroom, fit_of
        from ..render import fit
        from ..sources.system.ram_limit import least
    now = measured_now(reset_peaks=logger.reset_peaks)
    left: dict[Hashable, Headroom] = {
        gpu.key: Headroom(gpu.after_bytes, gpu.headroom_bytes) for gpu in now.gpus if gpu.attributed
    }
    limit = least(one for one in machine().limits.all() if one.memory == "RAM")
    left[RAM] = Headroom(now.gen.after_bytes, None if limit is None else limit.left_bytes)
    found = fit_of(logger.history, left, count, name)
    return fit.report(found), fit.html(found)


def load(path: Path) -> tuple[History, list[str], str, str]:
    """Return the history in a file, what is left out of it, and its summary, as text and as HTML."""
    with importing():
        from ..render import summary
        from ..storage import log
        from ..storage.history import History
    problems: list[str] = []
    history = History(log.load(path, problems))
    ranked = history.rank(), RANKED_BY[0], history.suspects()
    return history, problems, summary.summary(*ranked), summary.html(*ranked)


def snapshot(path: Path, *, of_failure: bool) -> list[str]:
    """Write torch's snapshot to a file, and return what that is."""
    kept = machine().failed_snapshot
    with importing():
        from ..sources.torch.snapshot import snapshot_file
    if of_failure and kept is None:
        raise Unavailable(
            f"{FAILED} is for the last recorded cell in which a GPU ran out of memory, and there is none:"
            " run it under %%gpulog --peak"
        )
    found = kept if of_failure and kept is not None else snapshot_file()
    write_file(path, found.content)
    content = f"{found.blocks:,} block{'s' * (found.blocks != 1)}"
    if found.events is not None:
        content += f" and {found.events:,} event{'s' * (found.events != 1)} of torch's memory history"
    written = f"{content} written to {path}, for https://pytorch.org/memory_viz."
    told = [f"The out-of-memory error in {found.where}: {written}" if of_failure else written]
    if kept is not None and not of_failure:
        earlier = f"The out-of-memory error in {kept.where}: %gpulog snapshot {FAILED} PATH"
        told.append(f"That is the present. {earlier}")
    elif found.events is None:
        told.append(
            "It has no history, as torch recorded none: for that, run this command at the end of a cell"
            " under %%gpulog --peak."
        )
    return told
