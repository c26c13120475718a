"""`qo queues`, `qo jobs`, `qo pause`, `qo resume`, `qo purge`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from qo.cli.opened import add_command
from qo.cli.output import print_table, progress
from qo.client.client import Client
from qo.client.job_info import first_line, job_info
from qo.core.errors import Invalid
from qo.core.outcome import Job, JobState

DEPTHS = ("ready", "retrying", "leased", "delayed", "dead")


def add_to(commands: Any) -> None:
    queues = add_command(commands, "queues", "list the queues and what is in them", _queues)
    queues.add_argument("--group", default="default", help="whose view (default: default)")
    queues.add_argument("--limit", type=int, default=100, help="how many queues (default 100)")
    queues.add_argument("--after", default="", metavar="NAME", help="begin after this name")
    jobs = add_command(commands, "jobs", "list the jobs of a queue, newest first", _jobs)
    jobs.add_argument("queue")
    jobs.add_argument("--state", choices=[each.value for each in JobState], help="only these")
    jobs.add_argument("--limit", type=int, default=20, help="how many (default 20)")
    jobs.add_argument("--before", metavar="ID", help="begin before this job")
    for name, help, run in (
        ("pause", "stop claims on a queue; pushes and settles go on", _pause),
        ("resume", "let claims on a queue go on", _resume),
    ):
        add_command(commands, name, help, run).add_argument("queue")
    purge = add_command(commands, "purge", "remove every message of a queue, for every group", _purge)
    purge.add_argument("queue")
    purge.add_argument("--yes", action="store_true", help="do not ask")


async def _queues(client: Client, given: argparse.Namespace) -> int:
    rows = []
    for info in await client.queues(after=given.after, limit=given.limit):
        queue = client.queue(info.name)
        if given.group not in [group.name for group in await queue.groups()]:
            continue
        depth = await queue.group(given.group).depth()
        rows.append({"queue": info.name, **{name: getattr(depth, name) for name in DEPTHS}, "paused": info.paused})
    if given.json:
        print(json.dumps(rows))
    else:
        shown = [[str(row[name]) for name in ("queue", *DEPTHS)] + ["paused" if row["paused"] else ""] for row in rows]
        print_table(["queue", *DEPTHS, ""], shown, empty="there are no queues yet; the first push creates one")
    return 0


async def _jobs(client: Client, given: argparse.Namespace) -> int:
    found = await client.queue(given.queue).jobs(state=given.state, before=given.before, limit=given.limit)
    if given.json:
        print(json.dumps([job_info(job) for job in found]))
        return 0
    rows = [_row(job) for job in found]
    print_table(["id", "kind", "key", "state", "attempt", "created", "error"], rows, empty="no such jobs")
    return 0


def _row(job: Job) -> list[str]:
    created, error = job.created_at.isoformat("T", "seconds"), (first_line(job.error) or job.reason or "")[:60]
    return [job.id, job.kind, job.key or "", job.state or "unknown", str(job.attempt), created, error]


async def _pause(client: Client, given: argparse.Namespace) -> int:
    await client.queue(given.queue).info()  # a name that was mistyped is no queue to pause
    await client.queue(given.queue).pause()
    print(json.dumps({"paused": True}) if given.json else f"'{given.queue}' is paused")
    return 0


async def _resume(client: Client, given: argparse.Namespace) -> int:
    await client.queue(given.queue).info()
    await client.queue(given.queue).resume()
    print(json.dumps({"paused": False}) if given.json else f"'{given.queue}' goes on")
    return 0


async def _purge(client: Client, given: argparse.Namespace) -> int:
    check_sure(given, f"Remove every message of '{given.queue}', for every group?")
    with progress(f"removing the messages of '{given.queue}'"):
        count = await client.queue(given.queue).purge()
    print(json.dumps({"count": count}) if given.json else f"{count} messages removed")
    return 0


def check_sure(given: argparse.Namespace, question: str) -> None:
    """What cannot be undone is asked about, or said with --yes."""
    if given.yes:
        return
    if not sys.stdin.isatty():
        raise Invalid("--yes", "is needed where nobody can be asked: this cannot be undone")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise Invalid("answer", "nothing was done")
