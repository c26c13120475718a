"""What the log says of a task that did not succeed: why, and what becomes of its message."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta

from qo.client.job_info import first_line
from qo.client.traces import describe, from_the_task_on
from qo.core.durations import duration_text
from qo.core.errors import QoError
from qo.core.lease import Bury, Delivered, Fail, Report, Verdict
from qo.core.retry import RetryPolicy
from qo.core.verbs import Broker
from qo.worker.errors import PermanentError, RetryableError, Snooze
from qo.worker.tasks import log_fields

log = logging.getLogger("qo.worker")

POLICY_SECONDS = 60.0
"""A queue's policy, which some lines tell of, is looked at again after so long."""
POLICY_PATIENCE_SECONDS = 2.0
"""How long a line waits for it."""


class FailureLines:
    """Writes them. The queue's own policy is asked for when something fails under it, and kept for a minute.

    `tell` never waits: a line that needs the queue's policy is written once the policy was read.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._policies: dict[str, tuple[float, RetryPolicy | None]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._later: set[asyncio.Task[None]] = set()

    def tell(self, message: Delivered, report: Report, verdict: Verdict | None, error: BaseException | None) -> None:
        """With its trace, unless the task said that it would fail."""
        if isinstance(error, Snooze):
            log.debug("task '%s' snoozed: %s", message.kind, error, extra=log_fields(message))
            return
        if not isinstance(report, Fail | Bury):
            return
        if verdict is Verdict.RETRYING and isinstance(report, Fail) and self._needs_policy(message.queue, report):
            task = asyncio.create_task(self._tell_later(message, report, verdict, error))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        else:
            self._write(message, report, verdict, error)

    async def drained(self) -> None:
        """Every line is written."""
        await asyncio.gather(*self._later, return_exceptions=True)

    def _write(
        self, message: Delivered, report: Fail | Bury, verdict: Verdict | None, error: BaseException | None
    ) -> None:
        meant = error is None or isinstance(error, RetryableError | PermanentError)
        trace = None if meant or error is None else from_the_task_on(error)
        said = first_line(report.error) if error is None else describe(error)
        fate = self._fate(message, report, verdict)
        log.warning(
            "task '%s' failed: %s",
            message.kind,
            f"{said}; {fate}" if fate != said else said,
            extra=log_fields(message),
            exc_info=None if error is None or trace is None else (type(error), error, trace),
        )

    def _fate(self, message: Delivered, report: Fail | Bury, verdict: Verdict | None) -> str:
        match verdict:
            case Verdict.RETRYING if isinstance(report, Fail):
                return self._retry(message, report)
            case Verdict.BURIED:
                return "dead"
            case Verdict.DROPPED:
                return "dropped"
            case Verdict.CANCELED:
                return "canceled"
            case _:
                return "its lease was over"

    def _retry(self, message: Delivered, report: Fail) -> str:
        _, policy = self._policies.get(message.queue, (0.0, None))
        limit = report.limit or (policy.attempts if policy else None)
        after = report.after
        if after is None and policy is not None:
            after = policy.rest(message.attempt, 0.5)
        count = f" ({message.attempt + 1} of {limit})" if limit else ""
        return f"retry in {_rounded(after)}{count}" if after is not None else f"it is tried again{count}"

    def _needs_policy(self, queue: str, report: Fail) -> bool:
        if report.limit and report.after:
            return False
        read_at, _ = self._policies.get(queue, (float("-inf"), None))
        return time.monotonic() - read_at > POLICY_SECONDS

    async def _tell_later(
        self, message: Delivered, report: Fail, verdict: Verdict, error: BaseException | None
    ) -> None:
        queue = message.queue
        if queue not in self._reading:
            self._reading[queue] = asyncio.create_task(self._read(queue))
        await asyncio.wait([self._reading[queue]])
        self._write(message, report, verdict, error)

    async def _read(self, queue: str) -> None:
        policy = None
        try:
            async with asyncio.timeout(POLICY_PATIENCE_SECONDS):
                policy = (await self._broker.inspect.queue(queue)).settings.retry
        except (QoError, TimeoutError):  # this one may not look, or the store is away
            pass
        finally:
            self._policies[queue] = time.monotonic(), policy
            self._reading.pop(queue, None)


def _rounded(length: timedelta) -> str:
    seconds = length.total_seconds()
    return duration_text(timedelta(seconds=round(seconds)) if seconds >= 1 else length)
