"""A second rank for a training in this process: it sends for each epoch what the first one sends."""

from ipygpulogger import callbacks
from ipygpulogger.cluster.torch_distributed import Job


class DictStore(dict):
    """A store of torch.distributed, as far as `Job` asks it; `broken` makes every operation fail."""

    broken = None

    def _act(self):
        if self.broken is not None:
            self.broken()

    def set(self, key, value):
        self._act()
        self[key] = value

    def check(self, keys):
        self._act()
        return all(key in self for key in keys)

    def get(self, key):
        return self[key]

    def delete_key(self, key):
        return self.pop(key, None) is not None


def share(monkeypatch):
    """From now on this process's trainings are those of rank 0 of two."""
    store = DictStore()
    first, second = (Job(rank, 2, store) for rank in range(2))

    def post(record, label):
        second.post(record, label)
        return first.post(record, label)

    monkeypatch.setattr(callbacks, "is_one_of_several", lambda: True)
    monkeypatch.setattr(callbacks, "post", post)


def check(callback):
    """Both ranks sent every epoch that the callback measured."""
    assert [group.label for group in callback.ranks] == [record.label for record in callback.history]
    for group, record in zip(callback.ranks, callback.history, strict=True):
        assert [(one.rank, one.gen, one.gpus) for one in group] == [
            (0, record.gen, record.gpus),
            (1, record.gen, record.gpus),
        ]
        assert not group.missing
