"""As much of Ray as `watch` uses, in one process: what is called runs at once, as a task of its own."""

import itertools
import types

WORKER_MODE, DRIVER_MODE = 1, 0


class RayActorError(Exception):
    """What a call of an actor that died raises."""


class Answer:
    """A reference and its future in one: the result of a call that has ended."""

    def __init__(self, call):
        try:
            self.value, self.error = call(), None
        except Exception as error:
            self.value, self.error = None, error

    def future(self):
        return self

    def result(self, timeout=None):  # noqa: ARG002 - as in Ray
        if self.error:
            raise self.error
        return self.value

    def exception(self):
        return self.error

    def add_done_callback(self, callback):
        callback(self)


class RemoteFunction:
    """What the fake `ray.remote` returns for a function."""

    def __init__(self, ray, function, _):
        self._ray, self._function = ray, function

    def remote(self, *args, **kwargs):
        return Answer(lambda: self._ray.as_task(self._function.__qualname__, self._function, *args, **kwargs))


class ActorClass:
    """The same for a class."""

    def __init__(self, ray, actor_class, options):
        self._ray, self._class, self._name = ray, actor_class, options.get("name")

    def options(self, **options):
        return ActorClass(self._ray, self._class, options)

    def remote(self, *args, **kwargs):
        if self._name in self._ray.actors:
            raise ValueError(f"The name {self._name} is already taken")
        handle = ActorHandle(self._ray, self._class, args, kwargs)
        if self._name:
            self._ray.actors[self._name] = handle
        return handle


class ActorHandle:
    """An actor; `alive` until it is killed."""

    def __init__(self, ray, actor_class, args, kwargs):
        self._ray, self._class, self.alive = ray, actor_class, True
        named = f"{actor_class.__name__}.__init__"
        self.instance = ray.as_task(named, actor_class, *args, **kwargs)

    def __getattr__(self, name):
        def call(*args, **kwargs):
            if not self.alive:
                raise RayActorError("the actor died")
            method = getattr(self.instance, name)
            return self._ray.as_task(f"{self._class.__name__}.{name}", method, *args, **kwargs)

        return types.SimpleNamespace(remote=lambda *args, **kwargs: Answer(lambda: call(*args, **kwargs)))


class FakeRay(types.ModuleType):
    """The module."""

    WORKER_MODE = WORKER_MODE

    def __init__(self):
        super().__init__("ray")
        self.remote_function = types.SimpleNamespace(RemoteFunction=RemoteFunction)
        self.actor = types.SimpleNamespace(ActorClass=ActorClass)
        self.exceptions = types.SimpleNamespace(RayActorError=RayActorError)
        self.initialized, self.actors, self.tasks = False, {}, []
        self._ids = itertools.count()

        def remote(*args, **options):
            if args:
                return self.declare(args[0], {})
            return lambda declared: self.declare(declared, options)

        self.remote, self.init, self.shutdown = remote, self.start, self.end

    def declare(self, declared, options):
        if not isinstance(declared, type):
            return RemoteFunction(self, declared, options)
        kind = type(
            "ActorClass", (ActorClass,), {"__hash__": declared.__hash__}
        )  # Ray's inherits both classes
        return kind(self, declared, options)

    def start(self):
        self.initialized = True

    def end(self):
        self.initialized = False
        for actor in self.actors.values():
            actor.alive = False
        self.actors.clear()

    def is_initialized(self):
        return self.initialized

    def get(self, answer, timeout=None):  # noqa: ARG002 - as in Ray
        return answer.result()

    def get_actor(self, name):
        if name not in self.actors:
            raise ValueError(f"no actor {name}")
        return self.actors[name]

    def kill(self, actor):
        actor.alive = False
        self.actors = {name: one for name, one in self.actors.items() if one is not actor}

    def as_task(self, name, call, *args, **kwargs):
        self.tasks.append((f"{next(self._ids):016x}", name))
        try:
            return call(*args, **kwargs)
        finally:
            self.tasks.pop()

    def get_runtime_context(self):
        task, name = self.tasks[-1] if self.tasks else (None, None)
        mode = WORKER_MODE if self.tasks else DRIVER_MODE
        return types.SimpleNamespace(
            worker=types.SimpleNamespace(mode=mode),
            get_task_id=lambda: task,
            get_task_name=lambda: name,
            get_job_id=lambda: "01",
            get_worker_id=lambda: "abcdef0123456789",
        )
