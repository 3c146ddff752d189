"""Where a running cell is shown: a place that keeps what it is told, a publisher like ipykernel's, a screen."""

import threading
from datetime import datetime, timezone

from memory import MB

from ipygpulogger.records import Measurement, Peak, RamUsage

TIMEOUT_S = 60  # of what hangs; nothing waits so long


def standing(time_s=3.0, used_mb=170, **more):
    """A cell that runs."""
    gen = RamUsage(100 * MB, used_mb * MB, Peak(used_mb * MB, used_mb * MB, "exact"))
    return Measurement(label="In [4]", started_at=datetime.now(timezone.utc), time_s=time_s, gen=gen, **more)


def begun(place):
    place.begin()
    return place


def in_a_thread(call, *args, **kwargs):
    thread = threading.Thread(target=call, args=args, kwargs=kwargs)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def here(call, *args, **kwargs):
    call(*args, **kwargs)


class Recorder:
    """A place that keeps what it is told."""

    shows = True

    def __init__(self):
        self.told, self.shown = [], threading.Semaphore(0)

    def begin(self):
        pass

    def show(self, measurement):
        self.told.append(measurement)
        self.shown.release()

    def end(self):
        self.told.append("end")

    def clear(self):
        self.told.append("clear")


class Session:
    """As Jupyter's: what it sends, it keeps."""

    def __init__(self):
        self.messages = []

    def send(self, _stream, message, *_, **__):
        self.messages.append(message)


class Publisher:
    """As ipykernel's: the hooks of a thread, which may take a message, then the session."""

    def __init__(self):
        self.session, self.threads = Session(), threading.local()
        self.parent_header = {"msg_id": "ours"}

    def publish(self, data, metadata=None, *, transient=None, update=False):
        assert metadata == {}
        kind = "update_display_data" if update else "display_data"
        self.send(kind, {"data": data, "metadata": metadata, "transient": transient or {}})

    def clear_output(self, wait=False):
        self.send("clear_output", {"wait": wait})

    def send(self, kind, content, parent=None):
        message = {"msg_type": kind, "content": content, "parent_header": parent or self.parent_header}
        for hook in getattr(self.threads, "hooks", ()):
            message = hook(message)
            if message is None:
                return
        self.session.send("socket", message, ident=b"topic")

    @property
    def sent(self):
        contents = [(m["msg_type"], m["content"]) for m in self.session.messages if isinstance(m, dict)]
        return [(kind, c["transient"].get("display_id"), c["data"]) for kind, c in contents if "data" in c]
