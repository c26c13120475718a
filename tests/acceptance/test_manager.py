"""`qo work --min --max`: as many worker processes as there is work for, and silence while there is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import asyncpg
import pytest

import qo
from tests.postgres import QUICK, Server, new_schema
from tests.serving import STORES, plain_environment, store_url

APP = """
import asyncio, os, qo
worker = qo.Worker(os.environ["STORE"], queues="q")

@worker.on("start")
def may_die():
    if os.environ.get("DIES") and not os.path.exists("alive"):
        open("died", "a").write("x")
        os._exit(3)

@worker.task()
async def nap(seconds):
    await asyncio.sleep(seconds)
    return os.getpid()
"""
SETTINGS = "[workers]\nscale_interval_ms = 100\nscale_down_seconds = 1\n[worker]\nclaim_batch_size = 1\n"
SILENT_SECONDS = float(os.environ.get("QO_SILENT_SECONDS", "10")) / 2


@pytest.fixture(scope="module")
def database():
    server = Server(settings={**QUICK, "log_statement": "all", "log_duration": "off"}).start()
    yield server
    server.remove()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class Managing:
    """A manager, and the processes below it."""

    def __init__(self, folder: Path, url: str, *flags: str, **environment: str) -> None:
        (folder / "app.py").write_text(APP)
        (folder / "qo.toml").write_text(SETTINGS)
        self.log = folder / "manager.log"
        self.port = free_port()
        command = [sys.executable, "-m", "qo.cli.main", "work", "app:worker", "--metrics-port", str(self.port), *flags]
        around = {**plain_environment(), "STORE": url, **environment}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=around, stderr=log)

    def said(self) -> str:
        return self.log.read_text()

    def pids(self) -> set[int]:
        """Of the workers."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return {int(each) for each in path.read_text().split()}

    def metric(self, name: str) -> float:
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}\b", line))

    async def until(self, condition) -> None:
        async with asyncio.timeout(60):
            while not condition():
                assert self.process.poll() is None, self.said()
                await asyncio.sleep(0.02)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, 60)

    def close(self) -> None:
        workers = self.pids() if self.process.poll() is None else set()
        self.process.kill()
        self.process.wait()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def manage(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(url: str, *flags: str, **environment: str) -> Managing:
            managing = Managing(tmp_path, url, *flags, **environment)
            stack.callback(managing.close)
            return managing

        yield start


@pytest.fixture(params=STORES)
def url(request, tmp_path, database):
    with store_url(request.param, tmp_path, database) as url:
        yield url


async def test_workers_come_with_the_work_and_go_after_it(manage, url):
    managing = manage(url, "--min", "0", "--max", "3")
    await managing.until(lambda: "managing 0 to 3 workers" in managing.said())
    assert managing.pids() == set()
    async with qo.connect(url) as client:
        queue = client.queue("q")
        later = await queue.submit("nap", 0, delay=2)
        jobs = [await queue.submit("nap", 1) for _ in range(6)]
        await managing.until(lambda: len(managing.pids()) == 3)
        for job in jobs:
            await job.result(timeout=60)
        await later.result(timeout=60)
        await managing.until(lambda: managing.pids() == set())
        assert [each for each in await client.workers() if each.state == "alive"] == []
    assert "scaling up from 0" in managing.said()
    await managing.until(lambda: managing.metric("qo_manager_scale_events_total") >= 2)
    await managing.until(lambda: managing.metric("qo_manager_finished_tasks_total") >= 6)
    managing.process.send_signal(signal.SIGTERM)
    assert await managing.ended() == 0


async def test_a_worker_that_dies_is_replaced_and_all_stop_together(manage, url):
    managing = manage(url, "--min", "2")
    async with qo.connect(url) as client:
        await managing.until(lambda: len(managing.pids()) == 2)
        first = managing.pids()
        os.kill(min(first), signal.SIGKILL)
        await managing.until(lambda: len(managing.pids()) == 2 and managing.pids() != first)
        assert managing.metric("qo_manager_replaced_workers_total") == 1
        job = await client.queue("q").submit("nap", 1)
        await managing.until(lambda: managing.metric("qo_manager_running_tasks") == 1)
        workers = managing.pids()
        managing.process.send_signal(signal.SIGINT)
        assert await managing.ended() == 0
        assert await job.result(timeout=1) in workers  # it was let finish
    assert all(not Path(f"/proc/{pid}").exists() for pid in workers)


async def test_workers_do_not_outlive_their_manager(manage, tmp_path):
    managing = manage(f"sqlite:///{tmp_path}/qo.db", "--max", "1")
    await managing.until(lambda: "working on q" in managing.said())
    workers = managing.pids()
    managing.process.kill()
    async with asyncio.timeout(30):
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            await asyncio.sleep(0.02)
    assert "the manager is gone" in managing.said()


async def test_workers_that_die_at_once_are_started_less_and_less_often(manage, tmp_path):
    managing = manage(f"sqlite:///{tmp_path}/qo.db", "--min", "1", DIES="yes")
    await managing.until(lambda: managing.said().count("ended by itself (exit code 3)") == 3)
    (tmp_path / "alive").touch()
    rests = [float(each) for each in re.findall(r"another is started in ([\d.]+) s", managing.said())]
    assert rests == [1.0, 2.0, 4.0]
    await managing.until(lambda: len(managing.pids()) == 1 and "working on q" in managing.said())


async def test_an_idle_system_with_a_minimum_of_none_is_silent(manage, database):
    url = f"{database.url}&schema={new_schema()}"
    managing = manage(url, "--min", "0")
    async with qo.connect(url) as client:
        await (await client.queue("q").submit("nap", 0)).result(timeout=60)
    await managing.until(lambda: managing.pids() == set() and "scaling down" in managing.said())
    await quiet(database)


async def test_workers_that_wait_are_silent_and_known_to_live(manage, database):
    url = f"{database.url}&schema={new_schema()}"
    managing = manage(url, "--min", "2")
    async with qo.connect(url) as client:
        async with asyncio.timeout(60):
            while len(found := await client.workers()) < 2:
                await asyncio.sleep(0.05)
    assert {each.pid for each in found} == managing.pids()
    await quiet(database)
    os.kill(min(managing.pids()), signal.SIGSTOP)  # it is still there, and its session too
    async with qo.connect(url) as client:
        assert [each.state for each in await client.workers()] == ["alive", "alive"]
        os.kill(min(managing.pids()), signal.SIGKILL)
        async with asyncio.timeout(60):
            while "gone" not in {each.state.value for each in await client.workers()}:
                await asyncio.sleep(0.05)


async def quiet(database: Server) -> None:
    """Not a statement of ours for a while."""
    await asyncio.sleep(1)
    if SILENT_SECONDS >= 30:
        await asyncio.sleep(65)  # what was finished is looked at once, a minute later
    began = database.log.stat().st_size
    await asyncio.sleep(SILENT_SECONDS)
    with database.log.open("rb") as log:
        log.seek(began)
        text = log.read().decode(errors="replace")
    assert re.findall(r"\] qo LOG:  (?:statement|execute).*", text) == []


async def test_an_enqueue_into_a_queue_that_does_not_exist_yet_wakes_a_manager_of_none(manage, database):
    """The first thing that anyone does: no queue, no worker, and one message in a transaction."""
    schema = new_schema()
    url = f"{database.url}&schema={schema}"
    async with qo.connect(url) as client:
        managing = manage(url, "--min", "0", "--max", "1")
        await managing.until(lambda: "managing 0 to 1 workers" in managing.said())
        connection = await asyncpg.connect(database.url)
        id = await qo.enqueue(connection, "q", 0, kind="nap", schema=schema)
        await connection.close()
        await client.job(id).result(timeout=60)
