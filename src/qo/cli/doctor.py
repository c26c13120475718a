"""`qo doctor`: open a store and say what is found."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

from qo.cli.configuration import read_configuration
from qo.cli.opened import opened
from qo.core.schedule import ScheduleInfo
from qo.core.worker import WaitingKind, WorkerInfo, WorkerState
from qo.environment import TOKEN_VARIABLE
from qo.worker.schedules import TAG


def add_to(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="open a store and say what is found",
        description="Open a store or a server, check it, and say what is in it. Creates nothing. Exits 1 if something "
        "needs attention.",
    )
    command.add_argument("url", nargs="?", help="the store or server (default: the configured one)")
    command.add_argument("--store", metavar="URL", help="the same")
    command.add_argument("--token", help=f"the token for a server (default: the variable {TOKEN_VARIABLE})")
    command.add_argument("--config", metavar="FILE", help="the configuration (default qo.toml, if there is one)")
    command.set_defaults(run=lambda given: asyncio.run(_examine(given)))


async def _examine(given: argparse.Namespace) -> int:
    configuration = read_configuration({"store": given.store}, path=given.config)
    if given.url is not None:
        configuration = configuration.with_value("store", given.url, "the command line")
    async with opened("doctor", configuration, given.token) as client:
        health = await client.health()
        queues = await client.queues(limit=20)
        workers = await client.workers()
        unserved = await client.unserved()
        orphans = orphaned(await client.schedules.list(tag=TAG, limit=1000), workers)
        depths = [(queue, await client.queue(queue.name).depth()) for queue in queues]
    print(f"{health.engine} {health.version}, schema {health.schema}")
    for name, value in health.details.items():
        print(f"  {name}: {value}")
    for queue, depth in depths:
        paused = ", paused" if queue.paused else ""
        print(
            f"  queue {queue.name}: {depth.ready} ready, {depth.retrying} retrying, {depth.leased} leased, "
            f"{depth.delayed} delayed, {depth.dead} dead{paused}"
        )
    alive = sum(each.state is WorkerState.ALIVE for each in workers)
    print(f"  workers: {alive} alive, {len(workers) - alive} gone or unknown")
    problems = [*health.problems, *(f"no worker takes {_described(each)}" for each in unserved), *orphans]
    for problem in problems:
        print(f"  attention: {problem}")
    print("healthy" if not problems else f"{len(problems)} thing(s) need attention")
    return 1 if problems else 0


def orphaned(schedules: Sequence[ScheduleInfo], workers: Sequence[WorkerInfo]) -> list[str]:
    """What to say of schedules that stood beside a task in code, and whose task no living worker has."""
    living = [each for each in workers if each.state is not WorkerState.GONE]
    return [
        f"schedule '{each.name}' was made by a worker's code, and no living worker has its task "
        f"'{each.plan.target.kind}'; remove it with: qo schedules delete {each.name}"
        for each in schedules
        if not each.paused
        and not any(
            each.plan.target.queue in worker.queues and each.plan.target.kind in worker.kinds for worker in living
        )
    ]


def _described(kind: WaitingKind) -> str:
    return f"'{kind.kind}' of queue '{kind.queue}' for group '{kind.group}'; it waits since {kind.oldest_at:%F %T} UTC"
