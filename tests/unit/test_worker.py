"""Workers: tasks as plain functions, many at once, in order within a key."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import pytest

import qo
from qo.client.lease_ends import LeaseEnds
from qo.core.lease import Fail, LeaseToken
from qo.core.worker import WorkerInfo
from qo.metrics.registry import prometheus_text
from qo.worker.pressure import Pressure, Watermark, claim_size, memory_usage
from tests.postgres import Server
from tests.serving import STORES, plain_environment, store_url


@pytest.fixture(scope="module")
def database():
    server = Server().start()
    yield server
    server.remove()


@pytest.fixture(params=STORES)
def url(request, tmp_path, database):
    with store_url(request.param, tmp_path, database) as url:
        yield url


@contextlib.asynccontextmanager
async def working(worker: qo.Worker, **options: Any):
    """A worker that runs in the background, and stops when it is left."""
    options.setdefault("signals", False)
    task = asyncio.create_task(worker.run(qo.WorkerRunOptions(**options)))
    try:
        yield task
    finally:
        worker.stop()
        await asyncio.wait_for(task, 60)


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


# The five tests of the seed


async def test_tasks_of_one_workflow_run_in_sequence(url):
    worker = qo.Worker(url, queues="q")
    seen: list[int] = []
    running = 0

    @worker.task("step")
    async def step(number: int) -> None:
        nonlocal running
        running += 1
        assert running == 1, "two of one workflow at once"
        await asyncio.sleep(0.002)
        seen.append(number)
        running -= 1

    async with qo.connect(url) as client, working(worker):
        for number in range(10):
            await client.queue("q").push(number, kind="step", key="workflow")
        await until(lambda: len(seen) == 10)
    assert seen == list(range(10))


async def test_workflows_run_in_parallel(url):
    worker = qo.Worker(url, queues="q")
    running = most = done = 0

    @worker.task()
    async def step(_: int) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await until(lambda: most == 100)
        running -= 1
        done += 1

    async with qo.connect(url) as client, working(worker):
        messages = [qo.Message(number, kind="step", key=f"w{number}") for number in range(100)]
        await client.queue("q").push_many(messages)
        await until(lambda: done == 100)
    assert most == 100


async def test_a_flood_is_bounded_by_the_slots(url):
    worker = qo.Worker(url, queues="q")
    running = most = done = 0

    @worker.task()
    async def step(_: int) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done += 1

    async with qo.connect(url) as client:
        for start in range(0, 10_000, 1000):
            await client.queue("q").push_many([qo.Message(start + number, kind="step") for number in range(1000)])
        async with working(worker, max_concurrent_tasks=50):
            await until(lambda: done == 10_000)
    assert most <= 50


def shown(worker: qo.Worker, name: str) -> float:
    return sum(
        float(line.split()[-1])
        for line in prometheus_text(worker.metrics.metrics()).splitlines()
        if line.startswith((name + " ", name + "{"))
    )


# The tests of the polling seed that are not pure; those are in test_core.py


def push_elsewhere(url: str, queue: str, kind: str) -> None:
    command = [sys.executable, "-m", "qo.cli.main", "push", queue, "1", "--kind", kind, "--store", url]
    subprocess.run(command, check=True, capture_output=True, env=plain_environment())


@pytest.mark.parametrize("wake", ["sqlite", "postgres", "http", "postgres polled"])
async def test_looks_become_rarer_while_nothing_comes_and_often_again_at_once(wake, tmp_path, database):
    """Only where the store cannot wake a worker. Elsewhere it never looks, and is woken all the same."""
    kind, _, polled = wake.partition(" ")
    with store_url(kind, tmp_path, database) as plain:
        url = f"{plain}&wake=poll" if polled else plain
        worker = qo.Worker(url, queues="q")
        seen: list[float] = []

        @worker.task()
        async def step(_: int) -> None:
            seen.append(shown(worker, "worker_poll_interval_seconds"))

        polling = qo.PollingStrategy.adaptive(min_interval_ms=20, max_interval_ms=640)
        async with working(worker, polling=polling), qo.connect(url) as client:
            looks = wake in ("sqlite", "postgres polled")
            if looks:
                await until(lambda: shown(worker, "worker_poll_interval_seconds") == 0.64)
                assert shown(worker, "worker_backoff_total") >= 5
                assert shown(worker, "worker_poll_empty_total") <= shown(worker, "worker_poll_total")
            if wake == "sqlite":  # another process: what this one pushes would wake it at once
                await asyncio.to_thread(push_elsewhere, url, "q", "step")
            else:
                await client.queue("q").push(1, kind="step")
            await until(lambda: seen)
        if looks:
            assert seen[0] < 0.64
        else:
            assert shown(worker, "worker_poll_total") == 0


async def test_a_worker_says_how_it_is(url):
    worker = qo.Worker(url, queues=["q", "r"])
    release = asyncio.Event()

    @worker.task()
    async def step(_: int) -> None:
        await release.wait()

    async def found(client: qo.Client, **wanted: Any) -> WorkerInfo:
        async with asyncio.timeout(60):
            while True:
                for each in await client.workers():
                    if all(getattr(each, name) == value for name, value in wanted.items()):
                        return each
                await asyncio.sleep(0.02)

    async with qo.connect(url) as client:
        async with working(worker, max_concurrent_tasks=7, lease=timedelta(seconds=0.6)):
            info = await found(client, id=worker.owner)
            assert (info.queues, info.kinds, info.state) == (("q", "r"), ("step",), "alive")
            assert (info.max_capacity, info.available_capacity, info.pressure) == (7, 7, ())
            assert 0 <= info.memory_usage <= 1
            assert shown(worker, "worker_pressure") == 0
            await client.queue("q").push_many([qo.Message(n, kind="step") for n in range(3)])
            await found(client, available_capacity=4)
            assert shown(worker, "worker_available_capacity") == 4
            release.set()
            await found(client, available_capacity=7)
        assert await client.workers() == []


async def test_pressure_is_seen_in_the_metrics_and_in_the_heartbeat(tmp_path):
    url = f"sqlite:///{tmp_path}/qo.db"
    worker = qo.Worker(url, queues="q")
    release = asyncio.Event()

    @worker.task()
    async def step(_: int) -> None:
        await release.wait()

    async with qo.connect(url) as client:
        await client.queue("q").push_many([qo.Message(n, kind="step") for n in range(3)])
        async with working(worker, memory_limit=0.0001, lease=timedelta(seconds=0.3)):
            await until(lambda: shown(worker, "worker_pressure") == 1)
            async with asyncio.timeout(60):
                while [each.pressure for each in await client.workers()] != [("memory",)]:
                    await asyncio.sleep(0.02)
            assert 0 < shown(worker, "worker_memory_usage") <= 1
            release.set()


async def test_a_task_that_blocks_the_loop_keeps_its_lease(url):
    worker = qo.Worker(url, queues="q")
    runs: list[int] = []

    @worker.task()
    async def block(number: int) -> str:
        runs.append(number)
        time.sleep(1.5)  # three lease terms
        return "done"

    async with qo.connect(url) as client, working(worker, lease=timedelta(seconds=0.5)):
        job = await client.queue("q").submit("block", 1)
        assert await job.result(timeout=30) == "done"
    assert runs == [1]


# What a task may say


async def test_results_errors_retries_and_burials(url):
    worker = qo.Worker(url, queues="q")
    attempts: dict[str, int] = {}

    def count(name: str) -> int:
        attempts[name] = attempts.get(name, 0) + 1
        return attempts[name]

    @worker.task()
    async def good(payload: dict) -> dict:
        return {"double": payload["n"] * 2}

    @worker.task()
    async def retried(_: Any, context: qo.Context) -> int:
        if count("retried") < 3:
            raise qo.RetryableError("not yet", after=0.01)
        return context.attempt

    @worker.task()
    async def permanent(_: Any) -> None:
        count("permanent")
        raise qo.PermanentError("never")

    @worker.task(retry=qo.RetryPolicy(attempts=2, delay=timedelta(0)))
    async def own_policy(_: Any) -> None:
        count("own_policy")
        raise ValueError("bad luck")

    @worker.task()
    async def snoozed(_: Any, context: qo.Context) -> int:
        if count("snoozed") < 4:
            raise qo.Snooze(0.01)
        return context.attempt

    @worker.task(timeout=0.05, retry=qo.RetryPolicy(attempts=1))
    async def slow(_: Any) -> None:
        await asyncio.sleep(60)

    @worker.task()
    def in_a_thread(number: int) -> int:
        time.sleep(0.01)
        return number + 1

    async with qo.connect(url) as client, working(worker):
        queue = client.queue("q")
        jobs = {name: await queue.submit(name, {"n": 4}) for name in worker.tasks if name != "in_a_thread"}
        jobs["in_a_thread"] = await queue.submit("in_a_thread", 41)
        assert await jobs["good"].result(timeout=30) == {"double": 8}
        assert await jobs["retried"].result(timeout=30) == 3
        assert await jobs["snoozed"].result(timeout=30) == 1, "no attempt is used"
        assert await jobs["in_a_thread"].result(timeout=30) == 42
        for name, error in (("permanent", "never"), ("own_policy", "bad luck"), ("slow", "longer than 0.05 s")):
            with pytest.raises(qo.JobFailed, match=error):
                await jobs[name].result(timeout=30)
        assert {each.kind for each in await queue.dead.list()} == {"permanent", "own_policy", "slow"}
    assert attempts == {"retried": 3, "permanent": 1, "own_policy": 2, "snoozed": 4}


@dataclasses.dataclass
class Order:
    customer: int
    cents: int = 0


async def test_payloads_are_typed_and_a_bad_one_is_buried(url):
    worker = qo.Worker(url, queues="q")
    seen: list[Order] = []

    @worker.task()
    async def charge(order: Order) -> None:
        seen.append(order)

    async with qo.connect(url) as client, working(worker):
        good = await client.queue("q").submit("charge", {"customer": 7, "cents": 5})
        bad = await client.queue("q").submit("charge", {"customer": "seven"})
        await good.result(timeout=30)
        with pytest.raises(qo.JobFailed, match=r"not what task 'charge' takes.*customer"):
            await bad.result(timeout=30)
    assert seen == [Order(7, 5)]


async def test_a_worker_takes_only_kinds_that_it_knows(url):
    worker = qo.Worker(url, queues="q")

    @worker.task()
    async def known(_: int) -> None: ...

    async with qo.connect(url) as client, working(worker):
        queue = client.queue("q")
        await queue.push(1, kind="unknown")
        await queue.push(2, kind="unknown", key="k")
        job = await queue.submit("known", 3)
        await job.result(timeout=30)
        assert (await queue.depth()).ready == 2


async def test_a_canceled_task_is_stopped(url):
    worker = qo.Worker(url, queues="q")
    started, stopped = asyncio.Event(), asyncio.Event()

    @worker.task()
    async def long(_: int, context: qo.Context) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            assert context.cancelled
            stopped.set()

    async with qo.connect(url) as client, working(worker, lease=timedelta(seconds=0.6)):
        job = await client.queue("q").submit("long", 1)
        await started.wait()
        await job.cancel()
        await asyncio.wait_for(stopped.wait(), 30)
        with pytest.raises(qo.JobCanceled):
            await job.result(timeout=30)


# Stopping


async def test_stopping_lets_tasks_finish_and_releases_the_rest(url):
    worker = qo.Worker(url, queues="q")
    go, started = asyncio.Event(), 0

    @worker.task()
    async def quick(_: int) -> None:
        nonlocal started
        started += 1
        await go.wait()

    @worker.task()
    async def endless(_: int) -> None:
        nonlocal started
        started += 1
        await asyncio.sleep(600)

    async with qo.connect(url) as client:
        queue = client.queue("q")
        one = await queue.submit("quick", 1)
        two = await queue.submit("endless", 2)
        running = asyncio.create_task(worker.run(qo.WorkerRunOptions(signals=False, grace_seconds=0.3)))
        await until(lambda: started == 2)
        worker.stop()
        go.set()
        await asyncio.wait_for(running, 30)
        assert await one.status() == qo.JobState.SUCCEEDED
        job = await two.job()
        assert (job.state, job.attempt) == (qo.JobState.QUEUED, 0)
        [again] = await queue.claim()
        assert again.attempt == 1, "no attempt was used"


async def test_a_worker_on_the_queue_of_an_open_client():
    async with qo.connect("sqlite://:memory:") as client:
        worker = qo.Worker(client.queue("q"))
        told: list[str] = []

        @worker.task()
        async def step(number: int) -> int:
            return number + 1

        for event in ("start", "success", "failure", "shutdown"):
            worker.on(event)(lambda *_, event=event: told.append(event))

        async with working(worker):
            assert await (await client.queue("q").submit("step", 1)).result(timeout=10) == 2
            await until(lambda: "success" in told)
            await client.queue("q").push("not a number", kind="step")  # it is buried
            await until(lambda: "failure" in told)
        assert told == ["start", "success", "failure", "shutdown"]


async def test_metrics_on_a_port(tmp_path):
    worker = qo.Worker(f"sqlite:///{tmp_path}/qo.db", queues="q")

    @worker.task()
    async def step(_: int) -> None: ...

    port = _free_port()
    async with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client, working(worker, metrics_port=port):
        await (await client.queue("q").submit("step", 1)).result(timeout=30)
        address = f"http://127.0.0.1:{port}/metrics"

        def text() -> str:
            with urlopen(address, timeout=10) as answer:
                return answer.read().decode()

        async with asyncio.timeout(30):
            while 'worker_tasks_completed_total{outcome="completed"} 1' not in (said := await asyncio.to_thread(text)):
                await asyncio.sleep(0.01)
    for name in ("worker_in_flight_tasks", "worker_task_duration_seconds", "worker_claims_total", "worker_claim_size"):
        assert name in said


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_cpu_tasks_run_in_processes(tmp_path):
    (tmp_path / "app.py").write_text(
        "import os, qo, time\n"
        f"worker = qo.Worker('sqlite:///{tmp_path}/qo.db', queues='q')\n"
        "@worker.task(cpu=True)\n"
        "def crunch(number): return [number * number, os.getpid()]\n"
        "@worker.task(cpu=True, retry=qo.RetryPolicy(attempts=1))\n"
        "def die(_): os._exit(1)\n"
        "@worker.task(cpu=True)\n"
        "def nap(seconds): time.sleep(seconds)\n"
    )
    import os
    import signal
    import subprocess
    import sys

    with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        job = client.queue("q").submit("crunch", 12)
        process = subprocess.Popen(
            [sys.executable, "-m", "qo.cli.main", "work", "app:worker"],
            cwd=tmp_path,
            env=plain_environment(),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            result = job.result(timeout=60)
            assert result[0] == 144
            assert result[1] not in (process.pid, os.getpid())
            with pytest.raises(qo.JobFailed, match="terminated abruptly"):
                client.queue("q").submit("die", 0).result(timeout=60)
            beside = [client.queue("q").submit(each, 3) for each in ("die", *["crunch"] * 6)][1:]
            assert [job.result(timeout=60)[0] for job in beside] == [9] * 6  # others start in its place
            assert {job.info()["attempt"] for job in beside} == {1}, "they pay nothing for it"
            job = client.queue("q").submit("nap", 1)
            while job.status() == "queued":
                time.sleep(0.01)
            time.sleep(0.3)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            _, said = process.communicate(timeout=30)
            assert process.returncode == 0, said
            assert "8 attempts succeeded, 2 failed" in said
            assert "KeyboardInterrupt" not in said
            assert job.status() == "succeeded", "it was let finish"
        finally:
            process.kill()
            process.communicate()


# Mistakes


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda worker: worker.task("a")(lambda: None), "must take the payload"),
        (lambda worker: worker.task()(lambda p: None), "a lambda has no name"),
        (lambda worker: worker.task("a", cpu=True)(lambda p: None), "at the top of a module"),
        (lambda worker: qo.Worker("mail"), "where: must be a URL"),
        (lambda worker: qo.Worker(queues=[]), "queues: must name"),
        (lambda worker: worker.task("a", concurrency=0)(lambda p: None), "at least 1"),
        (lambda worker: [worker.task("a")(lambda p: None) for _ in range(2)], "there already"),
        (lambda worker: worker.on("nothing"), "must be one of"),
        (lambda worker: worker.task("a", cpu=True)(lambda p, c: None), "cannot take a context"),
        (lambda worker: qo.WorkerRunOptions(max_concurrent_tasks=0), "max_concurrent_tasks"),
    ],
)
def test_mistakes_are_named(make, says):
    with pytest.raises(qo.Invalid, match=says):
        make(qo.Worker())


async def test_a_worker_without_tasks_does_not_run():
    with pytest.raises(qo.Invalid, match="no tasks"):
        await qo.Worker().run()


# Pressure


def test_how_much_is_claimed():
    assert claim_size(1000, 1000, 50, 1.0) == 50
    assert claim_size(99, 1000, 50, 1.0) == 0, "below a tenth"
    assert claim_size(100, 1000, 50, 1.0) == 50
    assert claim_size(30, 100, 50, 1.0) == 30, "never more than are free"
    assert claim_size(1, 1, 50, 1.0) == 1
    assert claim_size(1000, 1000, 50, 0.5) == 25


def test_pressure_has_watermarks():
    memory = Watermark(0.8)
    assert [memory.note(value) for value in (0.7, 0.81, 0.79, 0.77, 0.75)] == [False, True, True, True, False]
    pressure = Pressure(0.8, 1.0)
    assert pressure.factor(0.5) == 1.0
    assert pressure.factor(0.9) == 0.5
    for _ in range(100):
        pressure.took(2.0)
    assert pressure.factor(0.9) == pytest.approx(0.35)
    assert pressure.factor(0.1) == pytest.approx(0.7)


def test_memory_is_the_container_s_if_there_is_a_limit(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    assert memory_usage(tmp_path) == 0.75
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("90\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert memory_usage(tmp_path) == 0.75
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("100\n")
    assert memory_usage(tmp_path) == 0.9
    assert memory_usage(Path("/no/such/place")) == 0.0


def test_a_failure_that_is_free_says_when():
    with pytest.raises(qo.Invalid, match="how much later"):
        Fail("later", free=True)


# Kinds of work that do what they say


async def test_the_catalog_does_what_it_says(url):
    from qo.worker.catalog import CATALOG, catalog_worker, read_kinds

    kinds = read_kinds({"mine": {"duration_ms": 1, "outcome": "failure_until", "attempt": 2}})
    worker = catalog_worker(url, "q", kinds)
    assert set(CATALOG) <= set(worker.tasks)
    async with qo.connect(url) as client:
        queue = client.queue("q")
        await queue.configure(retry={"attempts": 3, "delay": 0})
        before = await queue.submit("cancel_me", 0)
        await before.cancel()
        jobs = {name: await queue.submit(name, 1) for name in kinds}
        async with working(worker, lease=timedelta(seconds=1)):
            for name in ("fast", "slow", "fail_twice", "mine"):
                assert await jobs[name].result(timeout=30) == {"did": 1}
            assert len(await jobs["large"].result(timeout=30)) > 100_000
            for name, attempts in (("fail", 1), ("fail_and_retry", 3), ("too_long", 1)):
                with pytest.raises(qo.JobFailed):
                    await jobs[name].result(timeout=30)
                assert (await jobs[name].job()).attempt == attempts
            await jobs["cancel_me"].cancel()
            for job in (before, jobs["cancel_me"]):
                with pytest.raises(qo.JobCanceled):
                    await job.result(timeout=30)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"x": {"outcome": "odd"}}, "work_kinds.x.outcome"),
        ({"x": {"duration": 1}}, "work_kinds.x.duration"),
        ({"x": 7}, "work_kinds.x"),
    ],
)
def test_a_bad_kind_of_work_is_named(given, field):
    from qo.worker.catalog import read_kinds

    with pytest.raises(qo.Invalid) as refused:
        read_kinds(given)
    assert refused.value.field == field


def test_what_polling_costs():
    polls, dollars = qo.monthly_cost(qo.PollingStrategy.fixed(500), 0.3)
    assert round(polls) == 5_184_000
    assert round(dollars, 2) == 2.07
    assert qo.monthly_cost(qo.PollingStrategy.fixed(100), 1.0)[1] == pytest.approx(10.37, abs=0.01)
    assert qo.monthly_cost(qo.PollingStrategy.adaptive(), 0.0)[0] == 518_400
    with pytest.raises(qo.Invalid):
        qo.monthly_cost(qo.PollingStrategy(), 2)


async def test_a_settle_whose_answer_is_lost_is_made_again_and_claims_on(monkeypatch):
    """The first was made; whoever repeats it brings other tokens for what it claims on."""
    async with qo.connect("sqlite://:memory:") as client:
        queue = client.queue("q")
        worker = qo.Worker(queue)
        ran: list[int] = []

        @worker.task("short")
        async def short(number: int) -> None:
            ran.append(number)

        broker, lost = cast("Any", client.broker), 0
        honest = broker.settle

        async def settle(items, then=()):
            nonlocal lost
            answer = await honest(items, then)
            if then and lost < 3:
                lost += 1
                raise qo.Unavailable("its answer was lost")
            return answer

        monkeypatch.setattr(broker, "settle", settle)
        await queue.push_many([qo.Message(number, kind="short") for number in range(200)])
        async with working(worker, lease=timedelta(seconds=2), max_concurrent_tasks=20):
            await until(lambda: len(set(ran)) == 200)
        assert lost == 3
        depth = await queue.depth()
        assert (depth.leased, depth.dead) == (0, 0)


# Leases that may have ended unnoticed


class Steady:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


LEASE = timedelta(seconds=30)
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


def given_at(seconds: float) -> datetime:
    """The end of a lease that the store gave then, by its own clock."""
    return EPOCH + timedelta(seconds=seconds) + LEASE


def test_a_lease_whose_answer_was_read_late_may_be_over():
    clock = Steady()
    ends = LeaseEnds(clock)
    ends.claimed(LeaseToken("one"), given_at(0), LEASE)
    assert not ends.may_be_over(LeaseToken("one"))
    clock.seconds += 100  # the process is stopped; the second claim was made at 60, and its answer waits
    ends.claimed(LeaseToken("two"), given_at(60), LEASE)
    assert ends.may_be_over(LeaseToken("two"))
    ends.claimed(LeaseToken("three"), given_at(99.9), LEASE)
    assert not ends.may_be_over(LeaseToken("three"))
    clock.seconds += 29
    assert not ends.may_be_over(LeaseToken("three"))
    clock.seconds += 1
    assert ends.may_be_over(LeaseToken("three"))
    ends.keep_only([LeaseToken("one")])
    assert not ends.may_be_over(LeaseToken("three")), "nothing is known of it any more"


def test_a_store_s_clock_that_is_put_back_costs_one_question():
    clock = Steady()
    ends = LeaseEnds(clock)
    ends.claimed(LeaseToken("one"), given_at(0), LEASE)
    ends.claimed(LeaseToken("two"), given_at(-40), LEASE)
    assert ends.may_be_over(LeaseToken("two")), "as far as one can tell"
    ends.extended(LeaseToken("two"), given_at(-40), LEASE, asked_at=clock())
    assert not ends.may_be_over(LeaseToken("two"))
    ends.claimed(LeaseToken("three"), given_at(-40), LEASE)
    assert not ends.may_be_over(LeaseToken("three"))


# From the start of the task


async def test_a_job_runs_from_the_start_of_its_task(url):
    """Not from the first extend: the lease is a minute, and nothing is extended here."""
    worker = qo.Worker(url, queues="q")
    began, go = asyncio.Event(), asyncio.Event()

    @worker.task
    async def step(_: int) -> None:
        began.set()
        await go.wait()

    async with working(worker, lease="1m"), qo.connect(url) as client:
        await client.queue("q").configure(history="full")
        for key in (None, "k"):
            began.clear()
            go.clear()
            job = await client.queue("q").submit("step", 1, key=key)
            await asyncio.wait_for(began.wait(), 30)
            info = await job.info()
            assert (info["state"], info["started_at"] is not None) == ("running", True)
            assert [event.state for event in await job.events()] == ["queued", "assigned", "running"]
            go.set()
            await job.result(timeout=30)
            assert [event.state for event in await job.events()] == ["queued", "assigned", "running", "succeeded"]


async def test_what_somebody_else_claims_is_assigned_until_it_is_said_to_have_started(url):
    async with qo.connect(url) as client:
        job = await client.queue("q").push(1)
        [delivery] = await client.queue("q").claim()
        assert await job.status() == "assigned"
        await delivery.extend(60)
        assert await job.status() == "running"


# Threads


async def test_a_thread_that_outlives_its_time_out_keeps_its_slot_and_is_said_to(tmp_path, caplog):
    worker = qo.Worker(f"sqlite:///{tmp_path}/qo.db", queues="q")
    go, told = threading.Event(), []

    @worker.task(timeout=0.1, retry=qo.RetryPolicy(attempts=1))
    def stuck(_: int, context: qo.Context) -> None:
        go.wait(60)
        told.append(context.cancelled)

    @worker.task
    async def other(_: int) -> None: ...

    async with working(worker, max_concurrent_tasks=1), qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        queue = client.queue("q")
        with pytest.raises(qo.JobFailed, match="took longer than"):
            await (await queue.submit("stuck", 1)).result(timeout=30)
        waiting = await queue.submit("other", 1)
        await until(lambda: "goes on in its thread after its time-out" in caplog.text)
        assert shown(worker, "worker_available_capacity") == 0
        assert await waiting.status() == "queued", "the one slot is taken"
        go.set()
        await waiting.result(timeout=30)
    assert told == [True]


async def test_a_thread_that_outlives_the_grace_period_is_said_to_and_its_message_given_back(tmp_path, caplog):
    worker = qo.Worker(f"sqlite:///{tmp_path}/qo.db", queues="q")
    began, go = threading.Event(), threading.Event()

    @worker.task
    def stuck(_: int) -> None:
        began.set()
        go.wait(60)

    async with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        job = await client.queue("q").submit("stuck", 1)
        failed: list[str] = []
        worker.on("failure")(lambda message: failed.append(message.kind))
        running = asyncio.create_task(worker.run(qo.WorkerRunOptions(grace_seconds="100ms")))
        await asyncio.to_thread(began.wait, 30)
        worker.stop()
        ran = await asyncio.wait_for(running, 30)
        assert ran.left_behind == 1
        assert failed == [], "given back is not failed"
        assert (
            "1 tasks still run in threads, which cannot be stopped: stuck; their messages were given back"
            in caplog.text
        )
        assert await job.status() == "queued"
    go.set()


# In one process


async def test_a_push_wakes_a_worker_by_url_in_the_same_process(tmp_path):
    """It looks once an hour: only what this process says can have woken it."""
    url = f"sqlite:///{tmp_path}/qo.db"
    worker = qo.Worker(url, queues="q")
    ran = asyncio.Event()

    @worker.task
    async def step(_: int) -> None:
        ran.set()

    rarely = qo.PollingStrategy.fixed(3_600_000)
    async with working(worker, polling=rarely), qo.connect(f"sqlite:///{tmp_path}/./qo.db", polling=rarely) as client:
        await until(lambda: shown(worker, "worker_poll_total") >= 1)
        job = await client.queue("q").submit("step", 1)
        await asyncio.wait_for(ran.wait(), 30)
        await job.result(timeout=30)


async def test_signals_are_the_application_s():
    before = signal.getsignal(signal.SIGTERM)
    async with qo.connect("sqlite://:memory:") as client:
        worker = qo.Worker(client.queue("q"))

        @worker.task
        async def step(_: int) -> None: ...

        async with worker.running():
            await (await client.queue("q").submit("step", 1)).result(timeout=30)
            assert signal.getsignal(signal.SIGTERM) is before


async def test_a_worker_that_cannot_begin_says_so_when_it_is_entered():
    worker = qo.Worker("postgresql://nobody@127.0.0.1:1/none?schema=Not_A_Name!")

    @worker.task
    async def step(_: int) -> None: ...

    with pytest.raises(qo.Invalid, match="schema"):
        async with worker.running():
            pytest.fail("it was entered")
    with pytest.raises(qo.Invalid, match="options: must be WorkerRunOptions"):
        async with worker.running({"a": 1}):
            pytest.fail("it was entered")
    with pytest.raises(qo.Invalid, match="has no tasks"):
        async with qo.Worker().running():
            pytest.fail("it was entered")


async def test_whoever_cancels_a_run_has_it_give_back_what_it_holds(tmp_path):
    """By its URL, with its machinery on another thread; or on a client's queue, on this one."""
    url = f"sqlite:///{tmp_path}/q.db"
    async with qo.connect(url) as client:
        for where in (url, client.queue("q")):
            worker, began = qo.Worker(where, queues="q"), asyncio.Event()

            @worker.task
            async def step(_: int, began: asyncio.Event = began) -> None:
                began.set()
                await asyncio.sleep(3600)

            await client.queue("q").push(1, kind="step")
            run = asyncio.create_task(worker.run())
            await asyncio.wait_for(began.wait(), 60)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(run, 60)
            [delivery] = await client.queue("q").claim()
            assert delivery.attempt == 1, "no attempt was used"
            await delivery.complete()


async def test_threads_left_behind_count_against_slots_and_limits(tmp_path):
    """A message that found no slot, or no room in its task's own limit, does not time out: its time has not begun."""
    async with qo.connect("sqlite://:memory:") as client:
        queue = client.queue("q")
        await queue.configure(retry={"attempts": 1})
        worker, release, began = qo.Worker(queue), threading.Event(), []

        @worker.task(timeout="50ms", concurrency=1)
        def stuck(number: int) -> int:
            began.append(number)
            if number == 0:
                release.wait(60)
            return number

        async with worker.running(qo.WorkerRunOptions(max_concurrent_tasks=2, threads=2)):
            first = await queue.submit("stuck", 0)
            with pytest.raises(qo.JobFailed, match="took longer"):
                await first.result(timeout=30)
            others = [await queue.submit("stuck", number) for number in (1, 2, 3)]
            await asyncio.sleep(0.3)
            assert began == [0], "one at once, and the first is still running"
            release.set()
            assert [await job.result(timeout=30) for job in others] == [1, 2, 3]


async def test_a_task_that_waits_for_a_thread_does_not_time_out():
    async with qo.connect("sqlite://:memory:") as client:
        queue = client.queue("q")
        await queue.configure(retry={"attempts": 1})
        worker = qo.Worker(queue)

        @worker.task(timeout=1)
        def slow(number: int) -> int:
            time.sleep(0.4)
            return number

        async with worker.running(qo.WorkerRunOptions(threads=1)):
            jobs = [await queue.submit("slow", number) for number in range(5)]
            assert [await job.result(timeout=60) for job in jobs] == list(range(5))


async def test_a_result_that_cannot_be_kept_is_not_tried_again():
    async with qo.connect("sqlite://:memory:") as client:
        worker, attempts = qo.Worker(client.queue("q")), []

        @worker.task
        async def odd(_: int) -> object:
            attempts.append(1)
            return object()

        async with worker.running():
            job = await client.queue("q").submit("odd", 1)
            with pytest.raises(qo.JobFailed, match="task 'odd' ran, but its result cannot be written as JSON"):
                await job.result(timeout=30)
        assert attempts == [1]


async def test_lines_of_a_task_carry_its_message(caplog):
    caplog.set_level("INFO", "qo.worker")
    async with qo.connect("sqlite://:memory:") as client:
        worker = qo.Worker(client.queue("q"))

        @worker.task
        async def step(_: int, context: qo.Context) -> None:
            context.logger.info("half done", extra={"worker": "w1"})
            context.progress("done")

        async with worker.running():
            job = await client.queue("q").submit("step", 1)
            await job.result(timeout=30)
    said = {record.getMessage(): record for record in caplog.records}
    for text in ("half done", "done"):
        record = said[text]
        assert (record.queue, record.kind, record.message_id, record.attempt) == ("q", "step", job.id, 1)
    assert said["half done"].worker == "w1"


async def test_a_worker_that_is_left_at_once_ends():
    async with qo.connect("sqlite://:memory:") as client:
        worker = qo.Worker(client.queue("q"))

        @worker.task
        async def step(_: int) -> None: ...

        async with asyncio.timeout(60), worker.running():
            pass
        assert worker.standing == (0, 0)


# A store that is away


@pytest.mark.parametrize("url", ["postgresql://x@127.0.0.1:1/x", "http://127.0.0.1:1"])
@pytest.mark.parametrize("now", [False, True])
async def test_a_worker_whose_store_is_away_can_be_stopped(url, now):
    worker = qo.Worker(url)
    worker.task("send")(lambda payload: None)
    started = asyncio.Event()
    worker.on("start")(started.set)
    running = asyncio.create_task(worker.run(qo.WorkerRunOptions(grace_seconds="100ms")))
    await asyncio.wait_for(started.wait(), 30)
    worker.stop(now=now)
    ran = await asyncio.wait_for(running, 60)
    assert (ran.succeeded, ran.failed) == (0, 0)


async def test_a_worker_runs_again_and_counts_anew(tmp_path):
    worker = qo.Worker(f"sqlite:///{tmp_path}/qo.db", queues="q")
    ended = asyncio.Event()
    worker.on("success")(lambda message: ended.set())

    @worker.task
    async def send(_: int) -> None: ...

    async with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        for _ in range(2):
            ended.clear()
            await client.queue("q").submit("send", 1)
            running = asyncio.create_task(worker.run())
            await asyncio.wait_for(ended.wait(), 30)
            worker.stop()
            assert (await asyncio.wait_for(running, 30)).succeeded == 1
    shown = {metric.name: [value for _, _, value in metric.samples()] for metric in worker.metrics.metrics()}
    assert shown["worker_tasks_completed_total"] == [2]
