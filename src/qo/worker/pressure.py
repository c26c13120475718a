"""How much a worker may claim: free slots, memory, and how long tasks take. Pure, but for reading the memory.

Watermarks keep it from flapping: pressure begins above its limit and ends below a lower one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

LEAST_FREE_SHARE = 0.1
MEMORY_FACTOR = 0.5
LATENCY_FACTOR = 0.7
CALM_SHARE = 0.95
"""Pressure ends at this share of its limit."""
LATENCIES = 1000
REASONS = ("memory", "latency")


def claim_size(free: int, slots: int, batch: int, factor: float) -> int:
    """How many messages to claim: none below a tenth of the slots, never more than are free."""
    if free < max(1, int(slots * LEAST_FREE_SHARE)):
        return 0
    return max(1, min(free, int(batch * factor)))


@dataclass(slots=True)
class Watermark:
    """Pressure that begins at a limit and ends at a share of it."""

    limit: float
    pressed: bool = False

    def note(self, value: float) -> bool:
        self.pressed = value > (self.limit * CALM_SHARE if self.pressed else self.limit)
        return self.pressed


class Pressure:
    """What memory and latency take off a claim's size."""

    def __init__(self, memory_limit: float, latency_threshold: float | None) -> None:
        self._memory = Watermark(memory_limit)
        self._latency = None if latency_threshold is None else Watermark(latency_threshold)
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self.memory_usage = 0.0

    def took(self, seconds: float) -> None:
        if self._latency is not None:
            self._latencies.append(seconds)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why less is claimed, if it is."""
        latency = self._latency is not None and self._latency.pressed
        return tuple(reason for reason, is_so in zip(REASONS, (self._memory.pressed, latency), strict=True) if is_so)

    def factor(self, memory: float) -> float:
        self.memory_usage = memory
        factor = MEMORY_FACTOR if self._memory.note(memory) else 1.0
        if self._latency is not None and self._latencies:
            ordered = sorted(self._latencies)
            if self._latency.note(ordered[int(len(ordered) * 0.99)]):
                factor *= LATENCY_FACTOR
        return factor


def memory_usage(root: Path = Path("/")) -> float:
    """The share of memory in use: of the container's limit, if there is one, else of the machine's. 0: not known."""
    for used, limit in (
        ("sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.max"),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ):
        try:
            most = (root / limit).read_text().strip()
            if most != "max" and int(most) < 1 << 60:
                return int((root / used).read_text()) / int(most)
        except (OSError, ValueError):
            continue
    try:
        rows = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        total, available = (int(rows[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        return 0.0
    return 1 - available / total
