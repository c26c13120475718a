"""The manager beside its decisions: a store that fails, workers that do not stop. Workers are stand-ins here."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import qo
from qo.core.errors import Unavailable
from qo.core.scaling import ScalingSettings
from qo.manager import manager as managing
from qo.manager.manager import Manager
from tests.unit.test_worker import until

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN_SCRIPT = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("pid", "w").write(str(subprocess.Popen(["sleep", "600"]).pid))
time.sleep(600)
"""
STUBBORN = [sys.executable, "-c", STUBBORN_SCRIPT]


@contextlib.asynccontextmanager
async def managed(client: qo.Client, command: list[str], **settings: float) -> AsyncIterator[Manager]:
    bounds = ScalingSettings(**{"default_count": 0, "max_count": 3, "scale_interval_ms": 20.0, **settings})
    manager = Manager(
        client.broker, command, bounds, queues=("q",), group="default", kinds=frozenset({"default"}), grace_seconds=0.1
    )
    running = asyncio.create_task(manager.run())
    try:
        yield manager
    finally:
        manager.stop()
        await asyncio.wait_for(running, 60)


async def test_a_store_that_fails_once_does_not_keep_workers(monkeypatch):
    async with qo.connect("sqlite://:memory:") as client:
        queue = client.queue("q")
        await queue.push_many([qo.Message(n) for n in range(5)])
        async with managed(client, SLEEPS, scale_down_seconds=0.5) as manager:
            await until(lambda: len(manager.working) == 3)
            store = client.broker.inspect
            look, failures = store.demand, 0

            async def failing(*wish):
                nonlocal failures
                failures += 1
                if failures == 1:
                    raise Unavailable("not now")
                return await look(*wish)

            monkeypatch.setattr(store, "demand", failing)
            await until(lambda: failures > 1)
            await queue.purge()
            await until(lambda: not manager.working)


async def test_a_worker_that_does_not_stop_is_killed_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(managing, "KILL_AFTER_SECONDS", 0.3)
    async with qo.connect("sqlite://:memory:") as client:
        await client.queue("q").push(1)
        async with managed(client, STUBBORN, scale_down_seconds=0.2) as manager:
            await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
            [worker] = manager.working
            await client.queue("q").purge()
            await until(lambda: not _lives(worker.pid))
            child = int((tmp_path / "pid").read_text())
            await until(lambda: not _lives(child))


def _lives(pid: int) -> bool:
    """A zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_a_command_that_cannot_be_started_is_tried_again(monkeypatch, caplog):
    monkeypatch.setattr(managing, "LONGEST_REST_SECONDS", 0.05)
    async with qo.connect("sqlite://:memory:") as client, managed(client, ["/no/such/program"], default_count=1):
        await until(lambda: caplog.text.count("could not start a worker") >= 3)
