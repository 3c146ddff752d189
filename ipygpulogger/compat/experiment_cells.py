"""`CellLogger`: reports every cell of an experiment, as ipyexperiments printed it."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, NamedTuple

from ..engine.now import measured_now
from ..notebook.logger import IPyGPULogger
from ..render import experiments as render
from .experiment_figures import device_in

if TYPE_CHECKING:
    from ..notebook.measured_cell import MeasuredCell
    from ..records import CellRecord

_SEED_LIMIT = 2**32  # of numpy.random.seed


class CellLoggerMemory(NamedTuple):
    """Memory of one cell, in bytes; 0 without a device, or where the figure is unknown."""

    used_delta: int
    peaked_delta: int
    used_total: int


class CellLoggerTime(NamedTuple):
    """Seconds that one cell took."""

    time_delta: float


class CellLoggerData(NamedTuple):
    """One cell: general RAM, the experiment's device, time."""

    cpu: CellLoggerMemory
    gpu: CellLoggerMemory
    time: CellLoggerTime


class CellLogger(IPyGPULogger):
    """Report after every cell of an experiment what it used; available as the experiment's ``cl``.

    Attributes:
        compact: Report on one line.
        gc_collect: Collect garbage before each snapshot; switch it off to hunt for reference cycles.
        set_seed: Seed the random numbers of Python, and those of numpy and torch where they are imported,
            with this before each cell; 0 for not. cuDNN is made deterministic until `stop`.
    """

    set_seed = 0

    def __init__(
        self, device: int | None = None, *, compact: bool = False, gc_collect: bool = True, set_seed: int = 0
    ) -> None:
        if not isinstance(set_seed, int) or not 0 <= set_seed < _SEED_LIMIT:
            raise ValueError(f"set_seed takes a whole number below 2**32, or 0 for none, not {set_seed!r}")
        uses_gpu = device is not None
        super().__init__(compact, gc_collect, clear_cache=uses_gpu, preload=uses_gpu)
        self.set_seed = set_seed
        self._device = device
        self._cudnn: tuple[bool, bool] | None = None  # the user's settings, while ours are in their place

    @property
    def data(self) -> CellLoggerData:  # type: ignore[override]
        """Return the last finished cell, in bytes and seconds; before the first, the memory in use now."""
        record = self.record
        if record is None:
            now = measured_now(reset_peaks=False, all_devices=False)
            gpu = device_in(now, self._device)
            return CellLoggerData(
                CellLoggerMemory(0, 0, now.gen.after_bytes),
                CellLoggerMemory(0, 0, (gpu.taken_bytes if gpu else None) or 0),
                CellLoggerTime(0.0),
            )
        gpu = device_in(record, self._device)
        return CellLoggerData(
            CellLoggerMemory(record.gen.consumed_bytes, record.gen.peaked_bytes, record.gen.after_bytes),
            CellLoggerMemory(gpu.consumed_bytes, gpu.peaked_bytes, gpu.taken_bytes or 0)
            if gpu
            else CellLoggerMemory(0, 0, 0),
            CellLoggerTime(record.time_s),
        )

    def _halt(self) -> None:
        super()._halt()
        if self._cudnn is not None:
            (deterministic, benchmark), self._cudnn = self._cudnn, None
            try:
                cudnn = sys.modules["torch"].backends.cudnn
                cudnn.deterministic, cudnn.benchmark = deterministic, benchmark
            except Exception:  # the user called torch.backends.disable_global_flags() meanwhile
                pass

    def _preload(self) -> None:
        super()._preload()
        if self.set_seed:
            self._seed()

    def _seed(self) -> None:
        random.seed(self.set_seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.set_seed)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(self.set_seed)  # of every device
            cudnn = torch.backends.cudnn
            if self._cudnn is None:
                self._cudnn = cudnn.deterministic, cudnn.benchmark
            cudnn.deterministic, cudnn.benchmark = True, False

    def _show(self, record: CellRecord, _: MeasuredCell) -> None:
        if self.report != "none":
            self._reporter.print_text(
                render.cell(record, device_in(record, self._device), compact=self.compact)
            )

    def _say_if_no_gpu(self) -> None:
        """Say nothing: the experiment's banner names the device."""
