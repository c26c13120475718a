"""Middleware: around each push of a client, and around each run of a task."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

import qo
from qo import testing


def stamped(messages, name: str):
    return [msgspec.structs.replace(each, headers={**(each.headers or {}), name: "yes"}) for each in messages]


class Recorder:
    """Middleware of both forms that note when they are entered and left."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def awaited(self, name: str):
        async def around(given: Any, call_next: Any) -> Any:
            self.seen.append(f"{name} in")
            try:
                return await (call_next(given) if isinstance(given, list) else call_next())
            finally:
                self.seen.append(f"{name} out")

        return around

    def stepped(self, name: str):
        def around(_: Any):
            self.seen.append(f"{name} in")
            try:
                yield
            finally:
                self.seen.append(f"{name} out")

        return around


async def test_the_first_of_a_client_s_middleware_is_the_outermost():
    recorder = Recorder()
    middleware = [recorder.awaited("a"), recorder.stepped("b")]
    async with qo.connect("sqlite://:memory:", middleware=middleware) as client:
        await client.queue("q").push(1)
        assert recorder.seen == ["a in", "b in", "b out", "a out"]
        assert (await client.queue("q").depth()).ready == 1


async def test_a_middleware_may_change_what_is_pushed():
    async def first(messages, call_next):
        return await call_next(stamped(messages, "first"))

    def second(messages):
        yield stamped(messages, "second")

    async with qo.connect("sqlite://:memory:", middleware=[first, second]) as client:
        queue = client.queue("q")
        await queue.push(1, headers={"own": "kept"})
        await queue.group("g").push_many([qo.Message(2)])
        async with queue.buffered() as buffer:
            await buffer.push(3)
        await client.transact(pushes=queue.prepare([qo.Message(4)]))
        found = await queue.claim(10)
    assert [each.payload for each in found] == [1, 2, 3, 4]
    assert all(each.headers["first"] == each.headers["second"] == "yes" for each in found)
    assert found[0].headers["own"] == "kept"


async def test_what_a_middleware_raises_is_the_push_s_error_and_nothing_is_stored():
    async def refusing(messages, call_next):
        raise PermissionError("not today")

    async with qo.connect("sqlite://:memory:", middleware=[refusing]) as client:
        queue = client.queue("q")
        with pytest.raises(PermissionError, match="not today"):
            await queue.push(1)
        with pytest.raises(PermissionError, match="not today"):
            await client.transact(pushes=queue.prepare([qo.Message(1)]))
        with pytest.raises(PermissionError, match="not today"):
            await queue.buffered().push(1)
        assert await client.queues() == []


async def test_a_generator_sees_an_error_and_cannot_swallow_it():
    seen = []

    def watching(messages):
        try:
            yield
        except qo.RolledBack as error:
            seen.append(error)

    async with qo.connect("sqlite://:memory:", middleware=[watching]) as client:
        queue = client.queue("q")
        await queue.push(0, dedupe="once")
        with pytest.raises(qo.RolledBack):
            await client.transact(pushes=queue.prepare([qo.Message(1, dedupe="once")]), refuse_duplicates=True)
    assert len(seen) == 1


async def test_a_middleware_answers_every_message():
    async def forgetful(messages, call_next):
        await call_next(messages)
        return []

    async with qo.connect("sqlite://:memory:", middleware=[forgetful]) as client:
        with pytest.raises(qo.Invalid, match="answered 0 pushes for 1"):
            await client.queue("q").push(1)


def twice(messages):
    yield
    yield


def never(messages):
    if messages is None:
        yield


@pytest.mark.parametrize("middleware", [twice, never])
async def test_a_generator_yields_once(middleware):
    async with qo.connect("sqlite://:memory:", middleware=[middleware]) as client:
        with pytest.raises(qo.Invalid, match="must yield once"):
            await client.queue("q").push(1)


@pytest.mark.parametrize("wrong", [len, lambda messages: None, "text", 3])
def test_what_cannot_be_a_middleware_is_refused_at_once(wrong):
    with pytest.raises(qo.Invalid, match="async functions, or generator functions"):
        qo.Worker(middleware=[wrong])
    with pytest.raises(qo.Invalid, match="async functions, or generator functions"):
        qo.Worker().middleware(wrong)


def test_the_sync_client_has_middleware_too():
    recorder = Recorder()
    with qo.connect("sqlite://:memory:", middleware=[recorder.awaited("a")]) as client:
        client.queue("q").push(1)
    assert recorder.seen == ["a in", "a out"]


async def test_middleware_runs_around_tasks_in_order_and_hooks_outside_it():
    recorder = Recorder()
    worker = qo.Worker(middleware=[recorder.awaited("a")])
    worker.middleware(recorder.stepped("b"))
    worker.on("success")(lambda message: recorder.seen.append(f"success of {message.kind}"))

    @worker.task
    async def send(payload: Any) -> None:
        recorder.seen.append("task")

    @worker.task
    def sync(payload: Any) -> None:
        recorder.seen.append("sync task")

    async with testing.harness() as harness:
        await harness.client.queue("default").submit("send", 1)
        await harness.client.queue("default").submit("sync", 1)
        assert (await harness.drain(worker)).succeeded == 2
    before, after = ["a in", "b in"], ["b out", "a out"]
    assert recorder.seen == [
        *before,
        "task",
        *after,
        "success of send",
        *before,
        "sync task",
        *after,
        "success of sync",
    ]


async def test_a_middleware_of_a_worker_may_change_the_result_and_see_the_error():
    seen = []
    worker = qo.Worker()

    @worker.middleware
    async def wrapping(context: qo.Context, call_next):
        try:
            return {"wrapped": await call_next(), "attempt": context.attempt}
        except ValueError as error:
            seen.append(str(error))
            raise qo.PermanentError("it never works") from error

    @worker.task
    async def answer(payload: int) -> int:
        if payload < 0:
            raise ValueError("negative")
        return payload

    async with testing.harness() as harness:
        queue = harness.client.queue("default")
        fine, failing = await queue.submit("answer", 2), await queue.submit("answer", -1)
        wrong = await queue.submit("answer", "not a number")
        await harness.drain(worker)
        assert await fine.result() == {"wrapped": 2, "attempt": 1}
        with pytest.raises(qo.JobFailed, match="it never works"):
            await failing.result()
        with pytest.raises(qo.JobFailed, match="the payload is not what task 'answer' takes"):
            await wrong.result()
    assert seen == ["negative"]


async def test_an_error_of_a_worker_s_middleware_fails_the_message():
    worker = qo.Worker()
    failed = []
    worker.on("failure")(lambda message: failed.append(message.kind))

    @worker.middleware
    def broken(context):
        yield
        raise RuntimeError("after the task")

    @worker.task
    async def send(payload: Any) -> None: ...

    async with testing.harness() as harness:
        job = await harness.client.queue("default").submit("send", 1)
        assert (await harness.drain(worker)).failed == 1
        assert await job.status() == "queued", "it is tried again"
    assert failed == ["send"]


async def test_what_a_middleware_changes_in_a_result_is_kept_and_hooks_see_what_became_of_it():
    worker = qo.Worker()
    heard = []
    worker.on("success")(lambda message: heard.append("success"))
    worker.on("failure")(lambda message: heard.append("failure"))

    @worker.middleware
    async def adding(context: qo.Context, call_next):
        result = await call_next()
        result["added"] = True
        return object() if "spoil" in result else result

    @worker.task
    async def answer(payload: dict) -> dict:
        return payload

    async with testing.harness() as harness:
        queue = harness.client.queue("default")
        kept, spoiled = await queue.submit("answer", {"a": 1}), await queue.submit("answer", {"spoil": 1})
        await harness.drain(worker)
        assert await kept.result() == {"a": 1, "added": True}
        with pytest.raises(qo.JobFailed, match="its result"):
            await spoiled.result()
    assert heard == ["success", "failure"]


async def test_a_generator_that_catches_an_error_leaves_its_cause():
    worker = qo.Worker()
    cause = KeyError("the cause")

    @worker.middleware
    def catching(context):
        with contextlib.suppress(ValueError):
            yield

    @worker.task
    async def fail(payload: Any) -> None:
        raise ValueError("failed") from cause

    async with testing.harness() as harness:
        job = await harness.client.queue("default").submit("fail", 1)
        await harness.drain(worker, to_the_end=True)
        [letter] = await harness.client.queue("default").dead.list()
    assert letter.id == job.id
    assert "the cause" in letter.error


async def test_hooks_that_a_start_hook_registers_are_called():
    async with qo.connect("sqlite://:memory:") as client:
        worker = qo.Worker(client.queue("q"))
        heard = asyncio.Event()

        @worker.on("start")
        def register() -> None:
            worker.on("success")(lambda message: heard.set())

        @worker.task
        async def send(payload: Any) -> None: ...

        await client.queue("q").submit("send", 1)
        async with worker.running():
            await asyncio.wait_for(heard.wait(), 30)
