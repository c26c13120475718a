"""What the log says of a task that did not succeed: why, and what becomes of its message."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from qo.client.delivery import describe
from qo.client.front import Front
from qo.client.job_info import first_line
from qo.core.durations import duration_text
from qo.core.errors import QoError
from qo.core.lease import Bury, Delivered, Fail, Report, Verdict
from qo.core.retry import RetryPolicy
from qo.worker.errors import PermanentError, RetryableError, Snooze
from qo.worker.tasks import log_fields

log = logging.getLogger("qo.worker")

POLICY_SECONDS = 60.0
"""A queue's policy, which some lines tell of, is looked at again after so long."""


class FailureLines:
    """Writes them. The queue's own policy is asked for when something fails under it, and kept for a minute."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._policies: dict[str, tuple[float, RetryPolicy | None]] = {}

    async def tell(
        self, message: Delivered, report: Report, verdict: Verdict | None, error: BaseException | None
    ) -> None:
        """With its trace, unless the task said that it would fail."""
        if isinstance(error, Snooze):
            log.debug("task '%s' snoozed: %s", message.kind, error, extra=log_fields(message))
            return
        if not isinstance(report, Fail | Bury):
            return
        meant = error is None or isinstance(error, RetryableError | PermanentError)
        said = first_line(report.error) if error is None else describe(error)
        log.warning(
            "task '%s' failed: %s; %s",
            message.kind,
            said,
            await self._fate(message, report, verdict),
            extra=log_fields(message),
            exc_info=None if meant else error,
        )

    async def _fate(self, message: Delivered, report: Fail | Bury, verdict: Verdict | None) -> str:
        match verdict:
            case Verdict.RETRYING if isinstance(report, Fail):
                return await self._retry(message, report)
            case Verdict.BURIED:
                return "dead"
            case Verdict.DROPPED:
                return "dropped"
            case Verdict.CANCELED:
                return "canceled"
            case _:
                return "its lease was over"

    async def _retry(self, message: Delivered, report: Fail) -> str:
        policy = None if report.limit and report.after else await self._policy(message.queue)
        limit = report.limit or (policy.attempts if policy else None)
        after = report.after
        if after is None and policy is not None:
            after = policy.rest(message.attempt, 0.5)
        count = f" ({message.attempt + 1} of {limit})" if limit else ""
        return f"retry in {_rounded(after)}{count}" if after is not None else f"it is tried again{count}"

    async def _policy(self, queue: str) -> RetryPolicy | None:
        read_at, policy = self._policies.get(queue, (float("-inf"), None))
        if time.monotonic() - read_at > POLICY_SECONDS:
            try:
                policy = (await self._front.inspect.queue(queue)).settings.retry
            except QoError:  # this one may not look
                policy = None
            self._policies[queue] = time.monotonic(), policy
        return policy


def _rounded(length: timedelta) -> str:
    seconds = length.total_seconds()
    return duration_text(timedelta(seconds=round(seconds)) if seconds >= 1 else length)
