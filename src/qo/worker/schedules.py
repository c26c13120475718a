"""Schedules that tasks have in code: put into the store when the worker starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from qo.core.backoff import LoopBackoff
from qo.core.errors import QoError, Unavailable
from qo.core.schedule import Plan
from qo.core.verbs import Broker

log = logging.getLogger("qo.worker")

TAG = "code"
"""Of schedules that stand beside a task in code."""


async def put_schedules(broker: Broker, plans: Mapping[str, Plan]) -> None:
    """Make the schedules, or change those that there are; however long the store takes to answer."""
    backoff = LoopBackoff()
    for name, plan in plans.items():
        while True:
            try:
                created, info = await broker.schedules.put_schedule(name, plan)
            except Unavailable as error:
                rest = backoff.failed()
                log.warning("could not put schedule '%s': %s; trying again in %.1f s", name, error, rest)
                await asyncio.sleep(rest)
            except QoError as error:
                log.warning("schedule '%s' is not in the store: %s", name, error)
                break
            else:
                backoff.succeeded()
                log.info("schedule '%s': %s%s", name, info.rule, " (new)" if created else "")
                break
