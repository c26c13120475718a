"""What a task may be: refused when it is registered, not when its first message comes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pydantic
import pytest

import qo
from qo.worker.running import Runner


class Order(pydantic.BaseModel):
    number: int
    notes: list[str] = []


@pytest.fixture
async def client():
    async with qo.connect("sqlite://:memory:") as client:
        yield client


async def run_one(client: qo.Client, worker: qo.Worker, kind: str, payload: Any) -> Any:
    async with worker.running():
        return await (await client.queue("q").submit(kind, payload)).result(timeout=30)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retry": {"attempts": 2}}, "retry: of task 'f' must be a RetryPolicy"),
        ({"retry": 3}, "retry: of task 'f' must be a RetryPolicy"),
        ({"timeout": "soon"}, "timeout: must be"),
        ({"timeout": 0}, "timeout: of task 'f' must be greater than 0"),
        ({"concurrency": 1.5}, "concurrency: of task 'f' must be a whole number"),
        ({"concurrency": "2"}, "concurrency: of task 'f' must be a whole number"),
        ({"cpu": 1}, "cpu: of task 'f' must be True or False"),
    ],
)
def test_bad_arguments_are_refused_at_registration(options, says):
    worker = qo.Worker()
    with pytest.raises(qo.Invalid, match=says):

        @worker.task(**options)
        def f(payload): ...

    assert worker.tasks == {}


def test_generators_are_refused():
    worker = qo.Worker()
    with pytest.raises(qo.Invalid, match="is a generator"):

        @worker.task
        async def pieces(_: int):
            yield 1


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda a, b, c: None,
        lambda *, payload: None,
    ],
)
def test_functions_that_cannot_take_a_message_are_refused(function):
    with pytest.raises(qo.Invalid, match="must take the payload"):
        qo.Worker().task("f")(function)


def test_an_annotation_that_cannot_be_resolved_is_refused():
    def f(payload: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(qo.Invalid, match="cannot be resolved"):
        qo.Worker().task("f")(f)


async def test_the_bare_decorator_registers(client):
    worker = qo.Worker(client.queue("q"))

    @worker.task
    async def double(number: int) -> int:
        return 2 * number

    assert await double(2) == 4, "it stays a function"
    assert await run_one(client, worker, "double", 21) == 42


async def test_a_context_alone_or_by_keyword_or_second(client):
    worker = qo.Worker(client.queue("q"))

    @worker.task
    async def alone(context: qo.Context) -> str:
        return context.message.kind

    @worker.task
    async def keyword(payload: int, *, context: qo.Context) -> list[Any]:
        return [payload, context.attempt]

    @worker.task
    async def unannotated(payload, context):
        return [payload, context.attempt]

    @worker.task
    async def first(context: qo.Context, payload: int = 0) -> str:
        return context.message.queue

    @worker.task
    def in_a_thread(payload: int, *, context: qo.Context) -> str:
        return context.id

    @worker.task
    async def defaulted(payload: int, scale: int = 2) -> int:
        return payload * scale

    async with worker.running():
        queue = client.queue("q")
        assert await (await queue.submit("alone", {"any": "thing"})).result(timeout=30) == "alone"
        assert await (await queue.submit("keyword", 7)).result(timeout=30) == [7, 1]
        assert await (await queue.submit("unannotated", 8)).result(timeout=30) == [8, 1]
        assert await (await queue.submit("defaulted", 4)).result(timeout=30) == 8
        assert await (await queue.submit("first", 1)).result(timeout=30) == "q"
        job = await queue.submit("in_a_thread", 1)
        assert await job.result(timeout=30) == job.id


async def test_a_fault_of_our_own_fails_the_message_and_frees_the_slot(client, monkeypatch, caplog):
    worker = qo.Worker(client.queue("q"))
    await client.queue("q").configure(retry={"attempts": 1})

    @worker.task
    async def step(number: int) -> int:
        return number

    async def broken(*_: Any) -> Any:
        raise AttributeError("a fault of qo's")

    monkeypatch.setattr(Runner, "run", broken)
    options = qo.WorkerRunOptions(max_concurrent_tasks=1)
    async with worker.running(options):
        first = await client.queue("q").submit("step", 1)
        with pytest.raises(qo.JobFailed, match="qo itself failed: AttributeError"):
            await first.result(timeout=30)
        monkeypatch.undo()
        assert await (await client.queue("q").submit("step", 2)).result(timeout=30) == 2, "the one slot is free again"
    assert "qo itself failed" in caplog.text


async def test_a_model_is_a_payload_as_it_is_a_type(client):
    worker = qo.Worker(client.queue("q"))

    @worker.task
    async def charge(order: Order) -> Order:
        return Order(number=order.number + 1, notes=[*order.notes, "charged"])

    job_payload = Order(number=1, notes=["new"])
    assert await run_one(client, worker, "charge", job_payload) == {"number": 2, "notes": ["new", "charged"]}
    await client.queue("r").push({"nested": [Order(number=3)]})
    [delivery] = await client.queue("r").claim()
    assert delivery.payload == {"nested": [{"number": 3, "notes": []}]}


def test_what_json_cannot_say_is_refused_in_a_model_too():
    class Ratio(pydantic.BaseModel):
        value: float

    with pytest.raises(qo.Invalid, match="NaN or infinity"), qo.connect("sqlite://:memory:") as client:
        client.queue("q").push(Ratio(value=float("nan")))


async def test_async_hooks_are_awaited_at_start_and_shutdown_too(client):
    worker = qo.Worker(client.queue("q"))
    told: list[str] = []

    @worker.task
    async def step(number: int) -> int:
        told.append("run")
        if number:
            raise qo.PermanentError
        return number

    for event in ("start", "success", "failure", "shutdown"):

        @worker.on(event)
        async def hook(*_: Any, event: str = event) -> None:
            await asyncio.sleep(0.01)
            told.append(event)

    async with worker.running():
        await (await client.queue("q").submit("step", 0)).result(timeout=30)
        with pytest.raises(qo.JobFailed):
            await (await client.queue("q").submit("step", 1)).result(timeout=30)
    assert told[0] == "start"
    assert told[-1] == "shutdown"
    assert sorted(told) == sorted(["start", "run", "success", "run", "failure", "shutdown"])


async def test_a_task_s_own_policy_weighs_more_than_the_queue_s(client):
    """Beyond the queue's limit it goes on; at its own it ends, as failed."""
    queue = client.queue("q")
    await queue.configure(retry={"attempts": 2, "delay": 0})
    worker, attempts = qo.Worker(queue), []

    @worker.task(retry=qo.RetryPolicy(attempts=4, delay=0))
    async def fails(number: int, context: qo.Context) -> None:
        attempts.append(context.attempt)
        raise ValueError(number)

    async with worker.running():
        job = await queue.submit("fails", 7)
        with pytest.raises(qo.JobFailed, match=r"ValueError: 7$"):
            await job.result(timeout=30)
    assert attempts == [1, 2, 3, 4]
    [letter] = await queue.dead.list()
    assert (letter.reason, letter.attempts) == ("failed", 4)
    assert letter.error.startswith("ValueError: 7\n\nTraceback (most recent call last):\n")
    assert "raise ValueError(number)" in letter.error
    assert "running.py" not in letter.error, "only the user's own frames"


async def test_lines_of_failures_say_what_comes_next(client, caplog):
    queue = client.queue("q")
    await queue.configure(retry={"attempts": 2, "delay": "50ms", "jitter": 0})
    worker = qo.Worker(queue)

    @worker.task
    async def by_the_queue(_: int) -> None:
        raise qo.RetryableError("away")

    @worker.task(retry=qo.RetryPolicy(attempts=3, delay="20ms", jitter=0))
    async def by_itself(_: int) -> None:
        raise ValueError("odd")

    @worker.task
    async def for_good(_: int) -> None:
        raise qo.PermanentError("no such customer")

    caplog.set_level(logging.WARNING, "qo.worker")
    async with worker.running():
        jobs = [await queue.submit(kind, 1) for kind in ("by_the_queue", "by_itself", "for_good")]
        for job in jobs:
            with pytest.raises(qo.JobFailed):
                await job.result(timeout=30)
    lines = [(record.kind, record.attempt, record.getMessage()) for record in caplog.records if hasattr(record, "kind")]
    assert ("by_the_queue", 1, "task 'by_the_queue' failed: RetryableError: away; retry in 50 ms (2 of 2)") in lines
    assert ("by_the_queue", 2, "task 'by_the_queue' failed: RetryableError: away; dead") in lines
    assert ("by_itself", 1, "task 'by_itself' failed: ValueError: odd; retry in 20 ms (2 of 3)") in lines
    assert ("by_itself", 3, "task 'by_itself' failed: ValueError: odd; dead") in lines
    assert ("for_good", 1, "task 'for_good' failed: PermanentError: no such customer; dead") in lines
    ids = {record.message_id for record in caplog.records if hasattr(record, "message_id")}
    assert ids == {job.id for job in jobs}
