"""What a worker counts, named as its specification names them."""

from __future__ import annotations

from collections.abc import Callable

from qo.core.lease import Bury, Complete, Fail, Report
from qo.core.polling import Polled
from qo.metrics.registry import SIZES, Registry
from qo.worker.pressure import REASONS, Pressure

OUTCOMES: dict[type, str] = {Complete: "completed", Fail: "failed", Bury: "buried"}


class WorkerMetrics:
    def __init__(self) -> None:
        self.registry = show = Registry()
        self._completed = show.counter("worker_tasks_completed_total", "Tasks that ended, by outcome.", ["outcome"])
        self._seconds = show.histogram("worker_task_duration_seconds", "How long tasks took.")
        self._claims = show.counter("worker_claims_total", "Claims that took something.")
        self._sizes = show.histogram("worker_claim_size", "Messages that a claim took.", [], SIZES)
        self.succeeded = self.failed = 0

    def in_flight(self, read: Callable[[], float]) -> None:
        self.registry.gauge("worker_in_flight_tasks", "Tasks that are claimed and not settled.", read)

    def capacity(self, slots: int, free: Callable[[], float]) -> None:
        self.registry.gauge("worker_max_capacity", "Slots.", lambda: slots)
        self.registry.gauge("worker_available_capacity", "Slots that are free.", free)

    def pressed(self, read: Callable[[], Pressure]) -> None:
        """Why less is claimed, and how much memory was in use when that was last decided."""
        show = self.registry
        show.gauge(
            "worker_pressure",
            "1 while less is claimed for this reason.",
            lambda: {(reason,): float(reason in read().reasons) for reason in REASONS},
            ["reason"],
        )
        show.gauge("worker_memory_usage", "Share of the memory in use.", lambda: read().memory_usage)

    def polled(self, read: Callable[[], Polled]) -> None:
        """Where a store cannot wake us."""
        show = self.registry
        text = "The rest between two looks."
        show.gauge("worker_poll_interval_seconds", text, lambda: read().interval.total_seconds())  # noqa: PLW0108
        show.counted("worker_poll_total", "Looks whether others wrote.", lambda: read().polls)
        show.counted("worker_poll_empty_total", "Looks that found nothing.", lambda: read().empty)
        show.counted("worker_backoff_total", "Times that the rest was made longer.", lambda: read().backoffs)

    def claimed(self, count: int) -> None:
        self._claims.add(1)
        self._sizes.observe(count)

    def settled(self, report: Report, seconds: float) -> None:
        snoozed = isinstance(report, Fail) and report.free
        self._completed.add(1, "snoozed" if snoozed else OUTCOMES.get(type(report), "released"))
        self._seconds.observe(seconds)
        if isinstance(report, Complete):
            self.succeeded += 1
        elif not snoozed:
            self.failed += 1
