"""What can be set on a run of a worker: defaults written once, validated on construction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from qo.core.durations import Length, duration, seconds_of
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
    signals               stop on SIGTERM and SIGINT; not by itself, because a loop may be an application's
    metrics_port          serve metrics on this port of this machine; None: not at all

    Durations are seconds, timedeltas or text: `WorkerRunOptions(lease="1m30s", grace_seconds="2m")`.
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
    signals: bool = False
    metrics_port: int | None = None

    if TYPE_CHECKING:  # durations are kept in one form, and may be given in others

        def __init__(
            self,
            *,
            max_concurrent_tasks: int = ...,
            claim_batch_size: int = ...,
            lease: Length = ...,
            lane_batch: int = ...,
            polling: PollingStrategy | None = ...,
            threads: int = ...,
            processes: int | None = ...,
            grace_seconds: Length = ...,
            latency_threshold_seconds: Length | None = ...,
            memory_limit: float = ...,
            signals: bool = ...,
            metrics_port: int | None = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "lease", duration("lease", self.lease))
        for name in ("grace_seconds", "latency_threshold_seconds"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, seconds_of(name, getattr(self, name)))
        for name in ("max_concurrent_tasks", "claim_batch_size", "lane_batch", "threads"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= CLAIM_LIMIT:
                raise Invalid(name, f"must be a whole number from 1 to {CLAIM_LIMIT}, not {value!r}")
        port, share, polling = self.metrics_port, self.memory_limit, self.polling
        checks = (
            ("processes", self.processes is None or _is_whole(self.processes, 1), "a whole number of at least 1"),
            ("lease", self.lease > timedelta(0), "greater than 0"),
            ("grace_seconds", self.grace_seconds >= 0, "0 or more"),
            ("polling", polling is None or isinstance(polling, PollingStrategy), "a PollingStrategy"),
            ("metrics_port", port is None or (_is_whole(port, 0) and port <= 65535), "from 0 to 65535"),
            ("memory_limit", type(share) in (int, float) and 0 < share <= 1, "above 0 and at most 1"),
        )
        for name, good, allowed in checks:
            if not good:
                raise Invalid(name, f"must be {allowed}, not {getattr(self, name)!r}")


def _is_whole(value: object, least: int) -> bool:
    return type(value) is int and value >= least
