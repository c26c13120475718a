"""What a worker counts, named as its specification names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from qo.core.lease import Bury, Complete, Fail, Report
from qo.core.polling import Polled
from qo.metrics.registry import SIZES, Registry
from qo.worker.pressure import REASONS, Pressure

OUTCOMES: dict[type, str] = {Complete: "completed", Fail: "failed", Bury: "buried"}


class Readings(NamedTuple):
    """What a run of a worker shows of itself: each is read when it is asked for."""

    in_flight: Callable[[], float]
    slots: Callable[[], float]
    free: Callable[[], float]
    pressure: Callable[[], Pressure]
    """Why less is claimed, and how much memory was in use when that was last decided."""
    polled: Callable[[], Polled]
    """Where a store cannot wake us."""


class WorkerMetrics:
    """Counted for as long as the worker object lives, however often it runs."""

    def __init__(self) -> None:
        self.registry = show = Registry()
        self._completed = show.counter("worker_tasks_completed_total", "Tasks that ended, by outcome.", ["outcome"])
        self._seconds = show.histogram("worker_task_duration_seconds", "How long tasks took.")
        self._claims = show.counter("worker_claims_total", "Claims that took something.")
        self._sizes = show.histogram("worker_claim_size", "Messages that a claim took.", [], SIZES)
        self.succeeded = self.failed = 0

        self._readings: Readings | None = None
        self._show_readings()

    def bind(self, readings: Readings) -> None:
        """Read these from now on: those of the run that began last."""
        self._readings = readings

    def _show_readings(self) -> None:
        def of(name: str, then: Callable[[Any], float] = float) -> Callable[[], float]:
            return lambda: 0.0 if self._readings is None else then(getattr(self._readings, name)())

        show = self.registry
        show.gauge("worker_in_flight_tasks", "Tasks that are claimed and not settled.", of("in_flight"))
        show.gauge("worker_max_capacity", "Slots.", of("slots"))
        show.gauge("worker_available_capacity", "Slots that are free.", of("free"))
        show.gauge("worker_pressure", "1 while less is claimed for this reason.", self._pressure, ["reason"])
        show.gauge("worker_memory_usage", "Share of the memory in use.", of("pressure", lambda each: each.memory_usage))
        text = "The rest between two looks."
        show.gauge("worker_poll_interval_seconds", text, of("polled", lambda each: each.interval.total_seconds()))
        show.counted("worker_poll_total", "Looks whether others wrote.", of("polled", lambda each: each.polls))
        show.counted("worker_poll_empty_total", "Looks that found nothing.", of("polled", lambda each: each.empty))
        show.counted(
            "worker_backoff_total", "Times that the rest was made longer.", of("polled", lambda each: each.backoffs)
        )

    def _pressure(self) -> dict[tuple[str, ...], float]:
        reasons = () if self._readings is None else self._readings.pressure().reasons
        return {(reason,): float(reason in reasons) for reason in REASONS}

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
