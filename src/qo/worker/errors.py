"""What a task raises to say more than that it failed."""

from __future__ import annotations

from qo.core.durations import Length, duration


class RetryableError(Exception):
    """It failed, and is worth another attempt; after so long (a timedelta, or seconds), if that is given."""

    def __init__(self, message: str = "", *, after: Length | None = None) -> None:
        super().__init__(message)
        self.after = None if after is None else duration("after", after)


class PermanentError(Exception):
    """It must not be tried again: it becomes a dead letter."""


class Snooze(Exception):
    """Not now: try again after so long. No attempt is used."""

    def __init__(self, after: Length, message: str = "snoozed") -> None:
        super().__init__(message)
        self.after = duration("after", after)


class UnusablePayload(PermanentError):
    """The payload is not what the task takes."""


class UnusableResult(PermanentError):
    """The task ran, and its result cannot be kept. Another attempt would only repeat that."""
