"""`qo workers`: who works, and what nobody takes."""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from qo.cli.opened import add_command
from qo.cli.output import print_table
from qo.client.client import Client
from qo.core.worker import WorkerInfo


def add_to(commands: Any) -> None:
    add_command(
        commands,
        "workers",
        "list the workers that are registered",
        _list,
        "List the workers that are registered, with what they take and how much room they have. One that is idle was "
        "last heard from when it became so. Those that are gone are listed for a day.",
    )


async def _list(client: Client, given: argparse.Namespace) -> int:
    found, unserved = await client.workers(), await client.unserved()
    if given.json:
        print(json.dumps({"workers": msgspec.to_builtins(found), "unserved": msgspec.to_builtins(unserved)}))
        return 0
    headings = ["id", "state", "queues", "kinds", "running", "slots", "memory", "pressure", "heard from"]
    print_table(headings, [_row(each) for each in found], empty="no workers")
    for kind in unserved:
        print(f"nobody takes '{kind.kind}' of queue '{kind.queue}' for group '{kind.group}'")
    return 0


def _row(worker: WorkerInfo) -> list[str]:
    return [
        worker.id,
        worker.state,
        ",".join(worker.queues),
        ",".join(worker.kinds) or "all",
        str(worker.max_capacity - worker.available_capacity),
        str(worker.max_capacity),
        f"{worker.memory_usage:.0%}",
        ",".join(worker.pressure) or "none",
        worker.seen_at.isoformat("T", "seconds"),
    ]
