"""TensorFlow's adapter: which GPU is which, and counters that stay the user's."""

# ruff: noqa: ARG005 - signatures as they are

import os

import pytest
from fake_frameworks import ALL, Allocator, Broken, begin, real
from memory import MB

from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.frameworks.tensorflow import TensorFlow


def test_tensorflow_is_not_initialised(fakes):
    """Neither by asking nor by measuring."""
    tensorflow = fakes.tensorflow(Allocator(), initialised=False)
    framework = TensorFlow()
    framework.hold()
    assert framework.counters() == []
    assert framework.current_index() is None
    framework.release()
    assert not tensorflow.context._initialized
    tensorflow.context.ensure_initialized()
    (counter,) = framework.counters()
    tensorflow.context._initialized = False
    with pytest.raises(Unavailable, match="uses no device"):
        counter.observe()
    assert not tensorflow.context._initialized


def test_tensorflow_numbers_gpus_its_own_way(fakes):
    """Hidden GPUs do not count, ours are the CUDA ordinals; none is known beside a split one or other hosts'."""
    allocators = [Allocator() for _ in range(4)]
    tensorflow = fakes.tensorflow(*allocators, hidden={0, 1})
    framework = TensorFlow()
    assert [c.device.index for c in framework.counters()] == [2, 3]
    allocators[3].move(MB)
    assert [c.observe().readings[0].current_bytes for c in framework.counters()] == [0, MB]
    assert tensorflow.get_memory_info("GPU:1")["current"] == MB
    assert framework.current_index() == 2
    fakes.monkeypatch.setattr(tensorflow.Context, "list_logical_devices", lambda *args: [0])
    assert TensorFlow().counters() == []
    fakes.tensorflow(*allocators, split={1: 2})
    assert TensorFlow().counters() == []


def test_every_spelling_of_a_gpu_is_the_users(fakes):
    """However the user names a GPU, its peak and its reset are theirs."""
    framework, counter, allocator, tensorflow = begin(fakes, "tensorflow")
    told = []
    framework.on_user_reset = lambda index, reset: (told.append(index), reset())
    allocator.move(900), allocator.move(-900)
    original = tensorflow.Context.get_memory_info
    framework.hold()
    counter.observe(), counter.reset()
    full = "/job:localhost/replica:0/task:0/device:GPU:0"
    for spelling in ("GPU:0", "/gpu:0", "/device:GPU:0", full, "GPU:*"):
        assert tensorflow.get_memory_info(spelling) == {"current": 100, "peak": 1000}
    framework.release()
    assert tensorflow.get_memory_info("GPU:0")["peak"] == 1000  # still kept for them
    tensorflow.reset_memory_stats("GPU:0")
    assert (told, tensorflow.get_memory_info("GPU:0")["peak"]) == ([0], 100)
    assert tensorflow.Context.get_memory_info is original


def test_tensorflow_users_errors_are_theirs(fakes):
    """A device that is not there, or not a GPU: what TensorFlow says, and nothing of ours moves."""
    framework, _counter, _allocator, tensorflow = begin(fakes, "tensorflow")
    framework.on_user_reset = Broken(AssertionError("not a GPU of ours"))
    framework.hold()
    for device in ("CPU:0", "GPU:9", "nonsense"):
        for function in (tensorflow.get_memory_info, tensorflow.reset_memory_stats):
            with pytest.raises(ValueError, match="No matching devices"):
                function(device)
    framework.release()


@pytest.mark.linux("nothing forks there", "macos")
@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_a_forked_child_asks_nothing_of_its_parents_threads(fakes, name):
    """The parent's client may have been locked at the moment of the fork."""
    framework, counter, _allocator, _module = begin(fakes, name)
    child = os.fork()
    if not child:
        try:
            framework.after_fork_in_child()  # as the machine does
            counter.observe()
        except Unavailable:
            os._exit(0 if ALL[name]().counters() == [] else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert counter.observe()


@pytest.mark.frameworks
def test_real_tensorflow():
    """No context before the user's, the methods we wrap are there and reach every caller, a CPU is no GPU."""
    program = """
import inspect, sys
from ipygpulogger.sources.frameworks.tensorflow import TensorFlow, _gpus
assert not TensorFlow().counters() and "tensorflow" not in sys.modules
import tensorflow as tf
contexts = sys.modules["tensorflow.python.eager.context"]
framework = TensorFlow()
def ask():
    framework.preload(), framework.settle(), framework.diagnose(), framework.current_index()
    return framework.counters()
framework.hold()
assert ask() == [] and contexts.context_safe() is None
framework.release()
assert list(inspect.signature(contexts.Context.get_memory_info).parameters) == ["self", "dev"]
assert list(inspect.signature(contexts.Context.reset_memory_stats).parameters) == ["self", "dev"]
for name in ("get_visible_devices", "list_physical_devices", "list_logical_devices"):
    assert list(inspect.signature(getattr(contexts.Context, name)).parameters) == ["self", "device_type"]
contexts.context()
assert ask() == [] and not contexts.context_safe()._initialized
tf.constant(1.0)
assert contexts.context_safe()._initialized and contexts.context_safe()._pluggable_devices == []
assert ask() == [] and _gpus() == {}
framework.hold()
for function in (tf.config.experimental.get_memory_info, tf.config.experimental.reset_memory_stats):
    try:
        function("GPU:0")
    except ValueError as error:
        assert "No matching devices" in str(error)
    else:
        raise AssertionError
framework.release()
print("done")
"""
    assert real(program) == "done"
