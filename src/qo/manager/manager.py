"""The manager: looks at demand, decides, and has worker processes started and stopped.

While there is something to do it looks every scale interval. While there is not,
it waits as claims wait: a hint wakes it, or the time at which something falls due.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any

from qo.core.backoff import LoopBackoff
from qo.core.errors import QoError
from qo.core.scaling import Demand, Scaler, ScalingSettings
from qo.core.verbs import Broker
from qo.manager.managed import REPORT_SECONDS
from qo.manager.processes import Child
from qo.metrics.registry import Registry

log = logging.getLogger("qo.manager")

FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 30.0
STEADY_SECONDS = 60.0
"""A worker that lived for so long started well: its death begins the backoff anew."""
KILL_AFTER_SECONDS = 10.0
"""Beyond its grace period."""


class Manager:
    """Keeps worker processes, each started with `command`. `stop` may be called from signal handlers."""

    def __init__(
        self,
        broker: Broker,
        command: Sequence[str],
        settings: ScalingSettings,
        *,
        queues: tuple[str, ...],
        group: str,
        kinds: Collection[str],
        grace_seconds: float,
    ) -> None:
        self._broker = broker
        self._command = command
        self._settings = settings
        self._queues, self._group, self._kinds = queues, group, kinds
        self._grace_seconds = grace_seconds
        self._scaler = Scaler(settings)
        self._children: dict[int, Child] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stops = 0
        self._wanted = settings.default_count
        self._backoff = LoopBackoff(FIRST_REST_SECONDS, LONGEST_REST_SECONDS)
        self._not_before = 0.0
        self._finished_before = 0
        self._noted = 0
        self._noted_at = time.monotonic()
        self.metrics = Registry()
        self._show()

    async def run(self) -> None:
        """Until told to stop, and all workers have."""
        try:
            await self._start_missing()
            demand: Demand | None = None
            while not self._stops:
                self._changed.clear()
                demand = await self._look(demand)
                await self._act_on(demand)
        finally:
            await self._stop_all()

    def stop(self) -> None:
        """Have all workers finish; again: give back what they run, now."""
        self._stops += 1
        self._changed.set()
        if self._stops > 1:
            for child in self._children.values():
                child.stop()

    @property
    def working(self) -> list[Child]:
        return [each for each in self._children.values() if not each.stopping]

    # Looking

    async def _look(self, before: Demand | None) -> Demand | None:
        """The demand; None: a worker ended or stopped meanwhile, or the store failed."""
        try:
            if before is not None and before.depth:
                await self._rest(self._settings.scale_interval_ms / 1000)
                return await self._unless_changed(self._broker.inspect.demand(self._queues, self._group, self._kinds))
            until = self._next_decision()
            return await self._unless_changed(
                self._broker.demand_or_wait(self._queues, self._group, self._kinds, until)
            )
        except QoError as error:
            log.warning("could not see what there is to do: %s", error)
            await self._rest(FIRST_REST_SECONDS)
            return None

    async def _unless_changed(self, looking: Coroutine[Any, Any, Demand]) -> Demand | None:
        look = asyncio.ensure_future(looking)
        change = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait([look, change], return_when=asyncio.FIRST_COMPLETED)
            return look.result() if look.done() else None
        finally:
            for each in (look, change):
                each.cancel()
            await asyncio.gather(look, change, return_exceptions=True)

    def _next_decision(self) -> datetime | None:
        """When the number of workers may change, if nothing happens."""
        times = [self._scaler.next_change()]
        if self._missing:
            times.append(self._broker.now() + timedelta(seconds=max(0.0, self._not_before - time.monotonic())))
        return min((each for each in times if each is not None), default=None)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    # Scaling

    async def _act_on(self, demand: Demand | None) -> None:
        if self._stops:
            return
        if demand is None:
            await self._start_missing()
        else:
            await self._scale(demand)

    async def _scale(self, demand: Demand) -> None:
        self._note_rate()
        there, now = len(self.working), self._broker.now()
        wanted = self._scaler.decide(demand, there, now)
        if wanted != self._wanted:
            direction = "up" if wanted > self._wanted else "down"
            self._events.add(1, direction)
            oldest = (now - demand.oldest_at).total_seconds() if demand.oldest_at else 0.0
            log.info(
                "scaling %s from %d to %d workers: %d messages run or could; the oldest has waited for %.1f s",
                direction, self._wanted, wanted, demand.depth, max(0.0, oldest),
            )  # fmt: skip
            self._wanted = wanted
        for child in sorted(self.working, key=lambda each: (each.running, -each.began))[: max(0, there - wanted)]:
            self._stop(child)
        await self._start_missing()

    @property
    def _missing(self) -> int:
        """How many workers to start. Workers that are stopping still count towards `max_count`."""
        room = self._settings.max_count - len(self._children)
        return max(0, min(self._wanted - len(self.working), room))

    async def _start_missing(self) -> None:
        if time.monotonic() < self._not_before:
            return
        for _ in range(self._missing):
            try:
                child = await Child.start(self._command)
            except OSError as error:
                self._not_before = time.monotonic() + LONGEST_REST_SECONDS
                log.warning("could not start a worker: %s; trying again in %g s", error, LONGEST_REST_SECONDS)
                return
            self._children[child.pid] = child
            watch = asyncio.create_task(self._watch(child))
            self._watching.add(watch)
            watch.add_done_callback(self._watching.discard)

    async def _watch(self, child: Child) -> None:
        code = await child.ended()
        del self._children[child.pid]
        self._finished_before += child.finished
        if not child.stopping and not self._stops:
            self._replaced.add(1)
            rest = self._rest_after(child)
            log.warning(
                "worker %d ended by itself (%s); another is started in %.1f s", child.pid, _exit_text(code), rest
            )
        self._changed.set()

    def _rest_after(self, child: Child) -> float:
        """Longer with each death, but for those that die together; a worker that lived for long starts anew."""
        now = time.monotonic()
        if now >= self._not_before:
            if now - child.began >= STEADY_SECONDS:
                self._backoff.succeeded()
            self._not_before = now + self._backoff.failed()
        return self._not_before - now

    def _note_rate(self) -> None:
        finished, now = self._finished, time.monotonic()
        if now - self._noted_at < 2 * REPORT_SECONDS:
            return  # workers report less often than that
        self._scaler.finished(finished - self._noted, len(self.working), now - self._noted_at)
        self._noted, self._noted_at = finished, now

    @property
    def _finished(self) -> int:
        return self._finished_before + sum(each.finished for each in self._children.values())

    def _stop(self, child: Child) -> None:
        child.stop()
        asyncio.get_running_loop().call_later(self._grace_seconds + KILL_AFTER_SECONDS, self._kill, child)

    def _kill(self, child: Child) -> None:
        if self._children.get(child.pid) is child:
            log.warning("worker %d does not stop: killed; what it held comes back when its leases end", child.pid)
            child.kill()

    async def _stop_all(self) -> None:
        for child in self.working:
            self._stop(child)
        await asyncio.gather(*self._watching)

    def _show(self) -> None:
        show = self.metrics
        show.gauge("qo_manager_workers", "Worker processes that run.", lambda: len(self.working))
        show.gauge("qo_manager_desired_workers", "Worker processes that there should be.", lambda: self._wanted)
        show.gauge(
            "qo_manager_running_tasks",
            "Tasks that the workers said they run.",
            lambda: sum(each.running for each in self._children.values()),
        )
        show.counted("qo_manager_finished_tasks_total", "Tasks that ended, as workers said.", lambda: self._finished)
        self._events = show.counter("qo_manager_scale_events_total", "Decisions to scale.", ["direction"])
        self._replaced = show.counter("qo_manager_replaced_workers_total", "Workers that ended by themselves.")


def _exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
