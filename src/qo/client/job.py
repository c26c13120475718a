"""A handle on one message of the default group."""

from __future__ import annotations

from typing import Any

import msgspec

from qo.client.job_info import JobInfo, first_line, job_info
from qo.client.payload import result_value
from qo.core.durations import Length, duration
from qo.core.errors import JobCanceled, JobFailed, NotFound
from qo.core.message import MessageId, id_text
from qo.core.names import DEFAULT_GROUP
from qo.core.outcome import CancelAnswer, Event, Job, JobState
from qo.core.verbs import Broker


class JobHandle(msgspec.Struct, frozen=True, gc=False):
    """Ask about a job, await its result, or cancel it.

    `duplicate` says that its dedupe key was held, so that this is the earlier message.
    """

    broker: Broker
    message_id: MessageId
    duplicate: bool = False

    @property
    def id(self) -> str:
        """The message's id, as text."""
        return id_text(self.message_id)

    async def info(self) -> JobInfo:
        """Everything that is known of it, as plain data that JSON can say. `NotFound` once it was removed."""
        return job_info(await self.job())

    async def job(self) -> Job:
        """The same as a value: payload and result as bytes, times as datetimes."""
        [job] = await self.broker.inspect.jobs([self.message_id])
        if job is None:
            raise NotFound(f"nothing is known of job {self.id} (any more)")
        return job

    async def status(self) -> JobState | None:
        """queued, assigned, running, succeeded, failed or canceled; None if its queue keeps no history of it."""
        return (await self.job()).state

    async def result(self, timeout: Length | None = None) -> Any:  # noqa: ASYNC109 - not a cancellation
        """Wait for the job to finish and return what it was completed with.

        Raises `JobFailed` or `JobCanceled` if it ended so, and `TimedOut` if it
        has not ended in time; then it goes on.
        """
        until = None if timeout is None else self.broker.now() + duration("timeout", timeout)
        job = await self.broker.finished(self.message_id, until)
        if job is None or job.state is None:
            raise NotFound(f"nothing is known of job {self.id}; its queue keeps no history, or no longer keeps this")
        if job.state is JobState.FAILED:
            raise JobFailed(f"job {self.id} failed: {first_line(job.error) or job.reason}")
        if job.state is JobState.CANCELED:
            raise JobCanceled(f"job {self.id} was canceled: {job.reason}")
        return result_value(job.result)

    async def cancel(self) -> CancelAnswer:
        """Cancel it. `requested` means that it is running: its holder is told at the next extend."""
        [answer] = await self.broker.admin.cancel([self.message_id], DEFAULT_GROUP)
        return answer

    async def events(self) -> list[Event]:
        """Its changes of state, where the queue's history is `full`."""
        return list(await self.broker.inspect.events(self.message_id))

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"
