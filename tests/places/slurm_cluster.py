"""A SLURM cluster of three nodes on this machine: python -m tests.places.slurm_cluster COMMAND …
runs a command in it. Needs root and the Debian packages slurm-wlm and munge.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NODES = ("n1", "n2", "n3")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")


def available() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, PROGRAMS))


class Cluster:
    """Daemons in a folder; `with` ends all of them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen] = {}

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("a") as log:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self) -> "Cluster":
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        conf = Path(__file__).with_name("slurm.conf").read_text()
        (self.folder / "slurm.conf").write_text(conf.replace("{folder}", str(self.folder)))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.start(
            "munged", "munged", "--foreground", "--force", "--key-file", str(key), "--socket",
            str(self.folder / "munge.socket"), "--pid-file", str(self.folder / "munged.pid"),
            "--log-file", str(self.folder / "munged.log"), "--seed-file",
            str(self.folder / "munged.seed"),
        )  # fmt: skip
        self.start("slurmctld", "slurmctld", "-D", "-c")
        for name in NODES:
            self.start(name, "slurmd", "-D", "-N", name)
        ends = time.monotonic() + 60
        while self.run("sinfo", "-h", "-o", "%T %D", check=False).split() != ["idle", "3"]:
            assert time.monotonic() < ends, (self.folder / "slurmctld.out").read_text()[-2000:]
            time.sleep(0.5)
        return self

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=check
        )
        return done.stdout

    def kill_node(self, name: str) -> None:
        """End a node without grace: its daemon and everything that it started."""
        os.kill(self.daemons[name].pid, signal.SIGKILL)
        steps = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True)
        tree = [line.split(None, 2) for line in steps.stdout.splitlines()[1:]]
        mark = f"{self.folder}/spool-{name}"
        roots = {pid for pid in (row[0] for row in tree) if _uses(pid, name, mark)}
        for pid in _descendants(tree, roots):
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass

    def __exit__(self, *_: object) -> None:
        self.run("scancel", "--user=root", check=False)
        for daemon in reversed(self.daemons.values()):
            if daemon.poll() is None:
                os.killpg(daemon.pid, signal.SIGTERM)
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(daemon.pid, signal.SIGKILL)
                    daemon.wait()


def _uses(pid: str, node: str, mark: str) -> bool:
    """Whether a process belongs to a step of this node, by its environment."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    named = f"SLURMD_NODENAME={node}".encode() in variables
    ours = any(v.startswith(b"SLURM_CONF=") and mark.startswith(_folder(v)) for v in variables)
    return named and ours


def _folder(variable: bytes) -> str:
    return str(Path(variable.decode().partition("=")[2]).parent)


def _descendants(tree: list[list[str]], roots: set[str]) -> set[str]:
    found = set(roots)
    while True:
        more = {row[0] for row in tree if row[1] in found} - found
        if not more:
            return found
        found |= more


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, Cluster(Path(place)) as cluster:
        sys.exit(subprocess.run(sys.argv[1:], env=cluster.environment).returncode)
