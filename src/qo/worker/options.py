"""What can be set on a run of a worker: defaults written once, validated on construction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from qo.core.errors import Invalid
from qo.core.lease import CLAIM_LIMIT
from qo.core.polling import PollingStrategy
from qo.core.queue import DEFAULT_LEASE

MAX_CONCURRENT_TASKS = 1000
CLAIM_BATCH_SIZE = 50
THREADS = 40
GRACE_SECONDS = 30.0
MEMORY_LIMIT = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRunOptions:
    """How a worker runs.

    max_concurrent_tasks  slots: tasks that run at once
    claim_batch_size      messages that one claim takes at most
    lease                 how long a claim holds what it took; extended when a third of it is over
    lane_batch            messages that a claim takes of one key
    polling               how often to look, where a store cannot wake us
    threads               that run tasks which are not async
    processes             that run tasks which are `cpu=True`; None: one for each core
    grace_seconds         how long a worker that is told to stop lets tasks finish
    latency_threshold_seconds  claim less while the slowest hundredth of tasks takes longer; None: never
    memory_limit          claim less while this share of the memory is in use
    signals               stop on SIGTERM and SIGINT
    metrics_port          serve metrics on this port of this machine; None: not at all
    """

    max_concurrent_tasks: int = MAX_CONCURRENT_TASKS
    claim_batch_size: int = CLAIM_BATCH_SIZE
    lease: timedelta = DEFAULT_LEASE
    lane_batch: int = 1
    polling: PollingStrategy | None = None
    threads: int = THREADS
    processes: int | None = None
    grace_seconds: float = GRACE_SECONDS
    latency_threshold_seconds: float | None = None
    memory_limit: float = MEMORY_LIMIT
    signals: bool = True
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_concurrent_tasks", "claim_batch_size", "lane_batch", "threads"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= CLAIM_LIMIT:
                raise Invalid(name, f"must be a whole number from 1 to {CLAIM_LIMIT}, not {value!r}")
        if self.lease <= timedelta(0):
            raise Invalid("lease", "must be greater than 0")
        if self.grace_seconds < 0:
            raise Invalid("grace_seconds", "must not be negative")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise Invalid("metrics_port", f"must be from 0 to 65535, not {self.metrics_port}")
        if not 0 < self.memory_limit <= 1:
            raise Invalid("memory_limit", f"must be above 0 and at most 1, not {self.memory_limit}")
