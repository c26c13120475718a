"""qo and its peers on PostgreSQL, each a driver script of its own that runs in its own process.

The drivers are in `peers/`; `peers/peerlib.py` says how they are called. Their packages
are installed into a folder of their own, so that nothing of theirs is among ours.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
DRIVERS = HERE / "peers"
PYTHON_PACKAGES = ("procrastinate", "pgqueuer", "asyncpg", "psycopg[binary,pool]", "awa-pg", "uvloop")
NODE_PACKAGES = ("pg-boss@12.35", "graphile-worker", "pg")
PATIENCE_SECONDS = 120


class Contender(NamedTuple):
    name: str
    driver: str
    jobs: float = 1.0
    """Its share of the jobs that are drained, so that a slow one does not take for ever."""
    setup: tuple[str, ...] = ()
    keys: int = 0
    """Over so many keys the jobs are spread, each in order; 0: none."""


QO = Contender("qo", "qo_peer.py", setup=("outcome",))
QO_WITHOUT_HISTORY = Contender("qo, history none", "qo_peer.py", setup=("none",))
PEERS = (
    Contender("graphile-worker", "graphile_peer.mjs"),
    Contender("pg-boss", "pgboss_peer.mjs"),
    Contender("PgQueuer", "pgqueuer_peer.py"),
    Contender("awa-pg", "awa_peer.py", jobs=0.3),
    Contender("Procrastinate", "procrastinate_peer.py", jobs=0.04),
)


class Stable:
    """Where the contenders' packages are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"

    def prepare(self, *, peers: bool) -> None:
        """Install what is missing: a minute, the first time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], check=True)
        packages = PYTHON_PACKAGES if peers else ("asyncpg", "uvloop")
        subprocess.run([self.python, "-m", "pip", "install", "--quiet", *packages], check=True)
        subprocess.run([self.python, "-m", "pip", "install", "--quiet", "-e", f"{HERE.parent}[postgres]"], check=True)
        for driver in DRIVERS.iterdir():  # beside their packages, where node looks for these
            if driver.is_file():
                (self.folder / driver.name).write_bytes(driver.read_bytes())
        if peers and shutil.which("npm") is None:
            sys.exit("two of the peers need npm; say --no-peers to do without any")
        if peers and not (self.folder / "node_modules").exists():
            subprocess.run(["npm", "install", "--silent", "--prefix", self.folder, *NODE_PACKAGES], check=True)

    def command(self, contender: Contender, *words: str) -> list[str]:
        runner = "node" if contender.driver.endswith(".mjs") else str(self.python)
        return [runner, str(self.folder / contender.driver), *words]


class Race:
    """One contender on one empty database."""

    def __init__(self, stable: Stable, contender: Contender, dsn: str) -> None:
        self.stable = stable
        self.contender = contender
        self._out = Path(tempfile.mkstemp(prefix="qo-bench-")[1])
        keys = str(contender.keys)
        self._environment = {**os.environ, "PEER_DSN": dsn, "PEER_OUT": str(self._out), "PEER_KEYS": keys}
        self.play("setup", *contender.setup)

    def play(self, *words: str) -> str:
        """Play a role to its end; what it printed last."""
        done = subprocess.run(
            self.stable.command(self.contender, *words),
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS * 5,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{self.contender.name} failed at {words}: {done.stderr[-2000:]}")
        return (done.stdout.split() or [""])[-1]

    def rate(self, role: str, count: int, *more: str) -> float:
        """Jobs enqueued per second."""
        return count / float(self.play(role, str(count), *more))

    @contextmanager
    def worker(self) -> Iterator[None]:
        process = subprocess.Popen(
            self.stable.command(self.contender, "work"),
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def handled(self) -> list[tuple[float, float]]:
        """When each job that was handled was sent, and when it was handled."""
        lines = self._out.read_text().split("\n")[:-1]
        return [(float(sent), float(at)) for sent, at in (line.split() for line in lines)]

    def wait_for(self, count: int) -> list[tuple[float, float]]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found := self.handled()) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.contender.name} handled {len(found)} of {count} jobs in {PATIENCE_SECONDS} s"
                )
            time.sleep(0.1)
        return found

    def drain(self, count: int) -> float:
        """Enqueue in bulk, then have a worker started: jobs handled per second, from its first to its last."""
        count = max(int(count * self.contender.jobs) // 1000, 1) * 1000
        before = len(self.handled())
        self.play("bulk", str(count))
        with self.worker():
            found = [at for _, at in self.wait_for(before + count + 1)[before:]]
        return (len(found) - 1) / (max(found) - min(found))

    def pickups(self, count: int) -> list[float]:
        """Milliseconds from enqueue to start, with an idle worker, sorted."""
        self.play("one", "5")
        with self.worker():
            before = len(self.wait_for(len(self.handled()) + 6))
            time.sleep(1)
            self.play("ping", str(count))
            found = self.wait_for(before + count)[before:]
        return sorted((at - sent) * 1000 for sent, at in found)

    def close(self) -> None:
        self._out.unlink()


def median_and_p99(times: list[float]) -> tuple[float, float]:
    return statistics.median(times), times[int(len(times) * 0.99)]
