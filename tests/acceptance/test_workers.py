"""Workers as processes: they share work, and what a killed or stopped one had runs again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import qo
from tests.crash import runs
from tests.postgres import Server, new_schema
from tests.serving import STORES, Serving, plain_environment, store_url

SHARE = float(os.environ.get("QO_SHARE", "0.8"))
"""How far a worker's share may be from a third, on a machine that does other things meanwhile."""

FLOOD_KIB = 60 * 1024
"""What a worker may grow by, of the 100 MiB that a flood has."""

APP = """
import asyncio, os, qo
worker = qo.Worker(os.environ["STORE"], queues="q")
LOG = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(*words):
    os.write(LOG, (" ".join(map(str, words)) + "\\n").encode())

@worker.on("start")
def ready():
    note("ready", os.getpid())

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

@worker.on("start")
def lean():
    note("rss", resident())

@worker.task()
async def heavy(text):
    await asyncio.sleep(0.001)
    note("heavy", len(text), resident())

@worker.task()
async def short(number):
    note("ran", os.getpid(), number)
    await asyncio.sleep(0.02)

@worker.task()
async def step(number, context: qo.Context):
    note("begin", os.getpid(), context.message.key, number)
    await asyncio.sleep(0.01)
    note("end", os.getpid(), context.message.key, number)

@worker.task()
async def hold(number):
    note("holding", os.getpid(), number)
    await asyncio.sleep(float(os.environ.get("HOLD", "600")))
    note("held", os.getpid(), number)
"""


class Shop:
    """A folder with an app, its log, and the workers that were started there."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.log = folder / "log.txt"
        self.log.touch()
        (folder / "app.py").write_text(APP)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *flags: str, **environment: str) -> subprocess.Popen[bytes]:
        around = {**plain_environment(), "STORE": self.url, "LOG": str(self.log), **environment}
        command = [sys.executable, "-m", "qo.cli.main", "work", "app:worker", *flags]
        process = subprocess.Popen(command, cwd=self.folder, env=around, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def note(self, line: str) -> None:
        with self.log.open("a") as log:
            log.write(line + "\n")

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def said(self, word: str) -> list[list[str]]:
        return [line.split()[1:] for line in self.lines() if line.startswith(word + " ")]

    async def until(self, word: str, count: int) -> None:
        async with asyncio.timeout(90):
            while len(self.said(word)) < count:
                await asyncio.sleep(0.02)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def database():
    server = Server().start()
    yield server
    server.remove()


@contextlib.contextmanager
def opened_shop(kind: str, folder: Path, database: Server) -> Iterator[Shop]:
    with store_url(kind, folder, database) as url, contextlib.closing(Shop(folder, url)) as shop:
        yield shop


@pytest.fixture(params=STORES)
def shop(request, tmp_path, database):
    with opened_shop(request.param, tmp_path, database) as shop:
        yield shop


async def test_three_processes_share_the_work(shop):
    for _ in range(3):  # who must poll looks often, or would come late
        shop.start("--concurrency", "100", QO_POLLING_MIN_INTERVAL_MS="10", QO_POLLING_MAX_INTERVAL_MS="20")
    await shop.until("ready", 3)
    await asyncio.sleep(1)  # until all of them wait
    async with qo.connect(shop.url) as client:
        for start in range(0, 9000, 1000):
            await client.queue("q").push_many([qo.Message(start + n, kind="short") for n in range(1000)])
        await shop.until("ran", 9000)
    ran = shop.said("ran")
    assert len({number for _, number in ran}) == 9000
    shares = Counter(process for process, _ in ran)
    assert len(shares) == 3
    assert all(abs(share - 3000) <= 3000 * SHARE for share in shares.values()), shares


async def test_a_flood_is_taken_with_bounded_memory(shop):
    """Ten thousand messages of 10 KiB are 100 MiB; a worker of 100 slots holds a hundredth of it."""
    async with qo.connect(shop.url) as client:
        for start in range(0, 10_000, 500):
            await client.queue("q").push_many([qo.Message(f"{start + n:010240}", kind="heavy") for n in range(500)])
    shop.start("--concurrency", "100")
    await shop.until("heavy", 10_000)
    [[before]] = shop.said("rss")
    grown = max(int(rss) for _, rss in shop.said("heavy")) - int(before)
    print(f"a flood of 100 MiB: grew by {grown} KiB")
    assert grown < FLOOD_KIB, f"grew by {grown} KiB"


async def test_what_a_killed_worker_had_runs_again_within_its_lease(shop):
    first = shop.start("--lease", "2")
    async with qo.connect(shop.url) as client:
        await client.queue("q").push(7, kind="hold", key="workflow")
        await client.queue("q").push(8, kind="step", key="workflow")
        await shop.until("holding", 1)
        first.kill()
        second = shop.start("--lease", "2", HOLD="0.01")
        await shop.until("end", 1)
    assert [process for process, _ in shop.said("holding")] == [str(first.pid), str(second.pid)]
    assert [words[2] for words in shop.said("end")] == ["8"], "in its turn"


async def test_a_second_signal_gives_back_at_once(shop):
    worker = shop.start()  # whose grace period is longer than what is waited for here
    async with qo.connect(shop.url) as client:
        await client.queue("q").push(7, kind="hold")
        await shop.until("holding", 1)
        worker.terminate()
        await asyncio.sleep(0.5)
        assert worker.poll() is None, "it lets the task finish"
        worker.terminate()
        assert await asyncio.to_thread(worker.wait, 20) == 0
        [again] = await client.queue("q").claim(wait=10)
        assert again.attempt == 1, "no attempt is used"
        assert await client.workers() == []


async def test_a_worker_that_slept_past_its_lease_settles_nothing(shop):
    first = shop.start("--lease", "1", HOLD="2")
    async with qo.connect(shop.url) as client:
        job = await client.queue("q").submit("hold", 7, key="workflow")
        await shop.until("holding", 1)
        os.kill(first.pid, signal.SIGSTOP)
        second = shop.start("--lease", "1", HOLD="3")
        await shop.until("holding", 2)
        os.kill(first.pid, signal.SIGCONT)
        assert await job.result(timeout=30) is None
        info = await job.job()
        assert f":{second.pid}:" in (info.lease_owner or f":{second.pid}:")
        depth = await client.queue("q").depth()
        assert (depth.ready, depth.leased, depth.dead) == (0, 0, 0)


async def test_a_worker_that_is_resumed_starts_nothing_whose_lease_has_ended(tmp_path, database):
    """Its long poll is answered while it is stopped, and another worker gets the message when that lease is over."""
    with opened_shop("http", tmp_path, database) as shop:
        first = shop.start("--lease", "1")
        async with qo.connect(shop.url) as client:
            queue = client.queue("q")
            await (await queue.submit("short", 1)).result(timeout=30)
            os.kill(first.pid, signal.SIGSTOP)
            job = await queue.submit("short", 2)
            second = shop.start("--lease", "60")
            await job.result(timeout=60)
            os.kill(first.pid, signal.SIGCONT)
            await asyncio.gather(*[(await queue.submit("short", number)).result(timeout=60) for number in (3, 4, 5)])
    ran = [number for process, number in shop.said("ran")]
    assert sorted(ran) == ["1", "2", "3", "4", "5"]
    assert [str(second.pid), "2"] in shop.said("ran")


async def test_under_kills_nothing_is_lost_nothing_overlaps_and_order_is_kept(tmp_path, database):
    """Kill a worker every two seconds, on every store at once; the checker finds nothing."""
    with contextlib.ExitStack() as stack:
        shops = []
        for kind in STORES:
            (tmp_path / kind).mkdir()
            shops.append(stack.enter_context(opened_shop(kind, tmp_path / kind, database)))
        found = await asyncio.gather(*map(killed_now_and_then, shops))
    assert found == [[]] * len(STORES)


async def killed_now_and_then(shop: Shop) -> list[str]:
    """What the checker finds."""
    seconds = float(os.environ.get("QO_WORKER_KILL_SECONDS", "20"))
    async with qo.connect(shop.url) as client:
        queue = client.queue("q")
        await queue.configure(max_lost=0)  # who is killed again and again is no poison
        workers = [shop.start("--lease", "3") for _ in range(2)]
        began, number, jobs = time.monotonic(), 0, []
        while time.monotonic() - began < seconds:
            for _ in range(10):
                jobs += [await queue.submit("step", number, key=f"w{key}") for key in range(5)]
                number += 1
            await asyncio.sleep(2)
            victim = workers.pop(0)
            victim.kill()
            await asyncio.to_thread(victim.wait)
            shop.note(f"killed {victim.pid}")
            workers.append(shop.start("--lease", "3"))
        for job in jobs:
            await job.result(timeout=120)
    assert any(line.startswith("killed") for line in shop.lines())
    return runs.problems(shop.lines(), {f"w{key}": number for key in range(5)})


async def test_a_worker_whose_server_dies_is_known_to_live_at_the_next(tmp_path, database):
    store = f"{database.url}&schema={new_schema()}"
    with contextlib.ExitStack() as stack:
        one, two = (
            stack.enter_context(Serving(tmp_path, "--store", store, name=f"server {number}")) for number in (1, 2)
        )
        shop = Shop(tmp_path, f"{one.url},{two.url}")
        stack.callback(shop.close)
        shop.start()
        async with qo.connect(two.url) as client:

            async def are(*states: str) -> None:
                async with asyncio.timeout(90):
                    while tuple(each.state.value for each in await client.workers()) != states:
                        await asyncio.sleep(0.05)

            await are("alive")
            one.process.kill()
            one.process.wait()
            await client.queue("q").push(1, kind="short")
            await shop.until("ran", 1)
            await are("alive")
            shop.processes[0].terminate()
            await are()
