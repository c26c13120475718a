"""When a failed attempt is tried again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from qo.core.durations import Length, duration
from qo.core.errors import Invalid

MOST_ATTEMPTS = 2**31 - 1
LARGEST_EXPONENT = 600.0
"""Of e. A microsecond times e to the 600 is longer than any `max_delay`, and no product below it overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a message is attempted and how long it rests in between.

    `attempts` counts deliveries that may fail, the first one included. The rest
    after failure n is `delay * multiplier ** (n - 1)`, at most `max_delay`, and
    spread by `jitter` to both sides so that failures do not come back in step.
    Durations may be given as seconds or as text, too: `RetryPolicy(delay="500ms")`.
    """

    attempts: int = 5
    delay: timedelta = timedelta(seconds=1)
    multiplier: float = 2.0
    max_delay: timedelta = timedelta(hours=1)
    jitter: float = 0.1

    if TYPE_CHECKING:  # durations are kept as timedeltas, and may be given in other ways

        def __init__(
            self,
            *,
            attempts: int = ...,
            delay: Length = ...,
            multiplier: float = ...,
            max_delay: Length = ...,
            jitter: float = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name in ("delay", "max_delay"):
            object.__setattr__(self, name, duration(f"retry.{name}", getattr(self, name)))
        if type(self.attempts) is not int or not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise Invalid("retry.attempts", f"must be a whole number of at least 1, not {self.attempts!r}")
        for name in ("multiplier", "jitter"):
            if type(getattr(self, name)) not in (int, float):
                raise Invalid(f"retry.{name}", f"must be a number, not {type(getattr(self, name)).__name__}")
        if self.delay < timedelta(0):
            raise Invalid("retry.delay", "must not be negative")
        if self.max_delay < timedelta(0):
            raise Invalid("retry.max_delay", "must not be negative")
        if not 1 <= self.multiplier < math.inf:
            raise Invalid("retry.multiplier", f"must be a number of at least 1, not {self.multiplier}")
        if not 0 <= self.jitter <= 1:
            raise Invalid("retry.jitter", f"must be from 0 to 1, not {self.jitter}")

    def exhausted(self, attempts: int) -> bool:
        """Whether this many failed attempts are all that there may be."""
        return attempts >= self.attempts

    def rest(self, failures: int, draw: float) -> timedelta:
        """How long to rest after the n-th failure; `draw` is uniform in [0, 1). `qo.rest_after` is the same in SQL."""
        ceiling, seconds = self.max_delay.total_seconds(), self.delay.total_seconds()
        if (failures - 1) * math.log(self.multiplier) <= LARGEST_EXPONENT:
            seconds *= self.multiplier ** (failures - 1)
        elif seconds > 0:
            seconds = ceiling
        spread = 1 - self.jitter + 2 * self.jitter * draw
        return timedelta(seconds=min(seconds, ceiling) * spread)
