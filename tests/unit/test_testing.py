"""What users test their own tasks with."""

from __future__ import annotations

import pytest

import qo
import qo.testing


def make_worker() -> qo.Worker:
    worker = qo.Worker(queues="mail")

    @worker.task()
    async def send(payload: dict, context: qo.Context) -> str:
        if context.attempt < payload.get("works_at", 1):
            raise qo.RetryableError("busy", after=60)
        return f"sent to {payload['to']}"

    @worker.task()
    def count(numbers: list[int]) -> int:
        return sum(numbers)

    return worker


async def test_draining_runs_what_is_there():
    async with qo.testing.harness() as harness:
        mail = harness.client.queue("mail")
        jobs = [await mail.submit("send", {"to": "Ada"}), await mail.submit("count", [1, 2])]
        later = await mail.submit("send", {"to": "Bob", "works_at": 3}, key="bob")
        drained = await harness.drain(make_worker())
        assert (drained.succeeded, drained.failed) == (2, 1)
        assert [await job.result(timeout=0) for job in jobs] == ["sent to Ada", 3]
        assert (await harness.drain(make_worker())).reports == [], "its time has not come"
        harness.clock.move(seconds=60)
        assert (await harness.drain(make_worker())).failed == 1
        assert (await harness.drain(make_worker(), to_the_end=True)).succeeded == 1
        assert await later.result(timeout=0) == "sent to Bob"


async def test_a_task_runs_inline():
    async with qo.testing.harness() as harness:
        assert await harness.run_inline(make_worker(), "count", [3, 4]) == 7
        with pytest.raises(qo.RetryableError):
            await harness.run_inline(make_worker(), "send", {"to": "Ada", "works_at": 2})
        assert await harness.run_inline(make_worker(), "send", {"to": "Ada", "works_at": 2}, attempt=2) == "sent to Ada"
        with pytest.raises(qo.Invalid, match="did you mean 'send'"):
            await harness.run_inline(make_worker(), "sendd", {})


def test_the_fixture_for_tests_that_are_not_async(qo_harness):
    job = qo_harness.push("mail", [5, 6], kind="count")
    assert qo_harness.drain(make_worker()).succeeded == 1
    assert qo_harness.result(job) == 11
