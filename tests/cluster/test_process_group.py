"""`gather` in a process that has a process group of torch's own, under each torch of the lanes."""

import gc
import weakref
from datetime import timedelta

import made
import pytest
import torch.distributed as dist

from ipygpulogger import measure
from ipygpulogger.cluster import gather
from ipygpulogger.cluster.torch_distributed import Job

pytestmark = pytest.mark.torch


def tcp(_):
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=9))


@pytest.fixture(params=[tcp, lambda _: dist.HashStore(), lambda path: dist.FileStore(str(path / "store"), 1)])
def group(request, tmp_path, monkeypatch):
    """A process group of this process alone, however its ranks would find each other."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("WORLD_SIZE", "2")  # without a group gather() raises
    dist.init_process_group("gloo", store=request.param(tmp_path), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_the_store_of_the_group(group):
    """Both ranks find it, whatever it is; keys are apart from the group's own, and a destroyed group is freed."""
    jobs = [Job(rank, 2) for rank in range(2)]
    for _ in range(2):
        gathering, _ = (
            job.post(made.plain(label="step", source=f"rank {job.process.rank}"), "step") for job in jobs
        )
        found = gathering.wait(9)
        assert [record.source for record in found] == ["rank 0", "rank 1"]
        assert found.missing == ()
    with measure("step") as m:
        pass
    assert [record.gen for record in gather(m)] == [m.gen]
    known = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    with pytest.raises(RuntimeError, match=r"gather\(\) needs the process group"):
        gather(m)
    gc.collect()
    assert known() is None
