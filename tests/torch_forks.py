"""Programs in processes of their own that begin with torch imported, which takes most of the time of one."""

import json
import os
import subprocess
import sys
import tempfile

# What the allocator reads when torch is loaded is not among them: such a program needs a new process.
MAY_DIFFER = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SIMGPU_STATE", "PYTHONPATH"}


class TorchForks:
    """A process that has imported torch, and neither used it nor imported anything of ours; it forks for each
    program.

    Args:
        env: Its environment.
    """

    def __init__(self, env):
        self._server = subprocess.Popen([sys.executable, __file__], env=env, stdin=-1, stdout=-1, text=True)
        self.pid = str(self._server.pid)

    def run(self, program, **env):
        """Run a program; return its exit status, and what it wrote to its two streams."""
        assert env.keys() <= MAY_DIFFER
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (stdout, stderr)]
            print(json.dumps([program, env, *files]), file=self._server.stdin, flush=True)
            status = int(self._server.stdout.readline())
            return status, *(file.seek(0) or file.read() for file in (stdout, stderr))

    def close(self):
        self._server.communicate()


def _serve():
    import torch  # noqa: F401 - what each program begins with

    for line in sys.stdin:
        program, env, *files = json.loads(line)
        child = os.fork()
        if not child:
            for number, path in enumerate(files, 1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ.update(env)
            sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(":")), *sys.path[1:]]
            return program
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return ""


if __name__ == "__main__":
    # As with `python -c`: the program's names are those of __main__, and it ends as a process does.
    vars(sys.modules["__main__"])["__annotations__"] = {}
    exec(compile(_serve(), "<string>", "exec"), {"__name__": "__main__"})
