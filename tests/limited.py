"""A simulated machine in a folder, with limits of RAM: its ``/proc`` and its ``/sys/fs/cgroup``."""

from pathlib import Path

GB = 2**30
NO_LIMIT_OF_V1 = 9223372036854771712  # how version 1 writes that there is none


class Simulated:
    """A machine below a folder; each method writes files that the kernel would write."""

    def __init__(self, root, *, total_bytes=64 * GB, available_bytes=60 * GB):
        self.root = Path(root)
        self.meminfo(total_bytes, available_bytes)
        self.write("proc/sys/kernel/random/boot_id", "8a1c-boot\n")

    def write(self, path, text):
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(text))
        return file

    def meminfo(self, total_bytes, available_bytes):
        self.write(
            "proc/meminfo",
            f"MemTotal:       {total_bytes // 1024} kB\nMemFree:         1 kB\n"
            f"MemAvailable:   {available_bytes // 1024} kB\nHugePages_Total: 2\n",
        )

    def process_of_v2(self, path="/"):
        """This process is in a group of version 2."""
        self.write("proc/self/cgroup", f"0::{path}\n")
        return self

    def process_of_v1(self, path="/"):
        """The same with version 1, beside which systemd mounts a version 2 that counts no memory."""
        self.write("proc/self/cgroup", f"9:name=systemd:/x\n4:memory:{path}\n3:cpu,cpuacct:/\n0::/\n")
        return self

    def group_of_v2(self, path="", *, current=0, inactive_file=0, kills=0, **limits):
        """A group's files: ``max`` as given, "max" for None."""
        folder = f"sys/fs/cgroup/{path.strip('/')}"
        self.write(f"{folder}/memory.current", current)
        self.write(f"{folder}/memory.stat", f"anon 5\nfile 7\ninactive_file {inactive_file}\nactive_file 3\n")
        self.write(f"{folder}/memory.events", f"low 0\nhigh 0\nmax 9\noom 3\noom_kill {kills}\n")
        for name, value in limits.items():
            text = "max" if value is None else value
            self.write(f"{folder}/memory.{name.replace('_', '.')}", f"{text}\n")
        return self.root / folder

    def group_of_v1(self, path="", *, limit=NO_LIMIT_OF_V1, usage=0, inactive_file=0, kills=0):
        folder = f"sys/fs/cgroup/memory/{path.strip('/')}"
        self.write(f"{folder}/memory.limit_in_bytes", limit)
        self.write(f"{folder}/memory.usage_in_bytes", usage)
        self.write(f"{folder}/memory.stat", f"inactive_file 1\ntotal_inactive_file {inactive_file}\n")
        self.write(f"{folder}/memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
        return self.root / folder


def container(root, *, limit=8 * GB, current=GB, **more):
    """A container of version 2, which sees its own group as the topmost one."""
    simulated = Simulated(root).process_of_v2()
    simulated.group_of_v2(current=current, max=limit, **more)
    return simulated
