"""When a failed attempt is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from qo.core.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a message is attempted and how long it rests in between.

    `attempts` counts deliveries that may fail, the first one included. The rest
    after failure n is `delay * multiplier ** (n - 1)`, at most `max_delay`, and
    spread by `jitter` to both sides so that failures do not come back in step.
    """

    attempts: int = 5
    delay: timedelta = timedelta(seconds=1)
    multiplier: float = 2.0
    max_delay: timedelta = timedelta(hours=1)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name in ("delay", "max_delay"):
            if not isinstance(getattr(self, name), timedelta):
                raise Invalid(f"retry.{name}", f"must be a timedelta, not {type(getattr(self, name)).__name__}")
        if self.attempts < 1:
            raise Invalid("retry.attempts", f"must be at least 1, not {self.attempts}")
        if self.delay < timedelta(0):
            raise Invalid("retry.delay", "must not be negative")
        if self.max_delay < timedelta(0):
            raise Invalid("retry.max_delay", "must not be negative")
        if not self.multiplier >= 1:
            raise Invalid("retry.multiplier", f"must be at least 1, not {self.multiplier}")
        if not 0 <= self.jitter <= 1:
            raise Invalid("retry.jitter", f"must be from 0 to 1, not {self.jitter}")

    def exhausted(self, attempts: int) -> bool:
        """Whether this many failed attempts are all that there may be."""
        return attempts >= self.attempts

    def rest(self, failures: int, draw: float) -> timedelta:
        """How long to rest after the n-th failure; `draw` is uniform in [0, 1)."""
        ceiling = self.max_delay.total_seconds()
        try:
            seconds = self.delay.total_seconds() * self.multiplier ** (failures - 1)
        except OverflowError:
            seconds = ceiling
        spread = 1 - self.jitter + 2 * self.jitter * draw
        return timedelta(seconds=min(seconds, ceiling) * spread)
