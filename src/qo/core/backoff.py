"""How long a background loop rests after failures."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_POWER = 60
"""Of 2: beyond it every rest is the longest."""


@dataclass(slots=True)
class LoopBackoff:
    """Rests that double with each failure in a row, up to the longest. One of these belongs to one loop."""

    first_seconds: float = 0.1
    longest_seconds: float = 10.0
    failures: int = 0

    @property
    def seconds(self) -> float:
        """How long to rest after the failures so far."""
        if not self.failures:
            return 0.0
        return min(self.first_seconds * 2.0 ** min(self.failures - 1, LARGEST_POWER), self.longest_seconds)

    def failed(self) -> float:
        """Note another failure: how long to rest now."""
        self.failures += 1
        return self.seconds

    def succeeded(self) -> None:
        """The next failure is the first one again."""
        self.failures = 0
