"""`qo job` and `qo cancel`: one job, by its id."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from qo.cli.opened import add_command
from qo.cli.output import printable
from qo.client.client import Client
from qo.client.job import JobHandle
from qo.client.job_info import job_info
from qo.core.errors import NotFound
from qo.core.outcome import CancelAnswer, Event, Job

WATCH_SECONDS = 0.5
"""How often a job that is watched is looked at, while it has not ended."""
SHOWN = ("queue", "kind", "key", "state", "attempt", "reason")
TIMES = ("created_at", "due_at", "started_at", "heartbeat_at", "finished_at", "lease_owner", "lease_expires_at")


def add_to(commands: Any) -> None:
    job = add_command(
        commands,
        "job",
        "show a job: state, attempts, errors, payload, result",
        _show,
        "Show everything that is known of a job: its state, attempts, times, errors with their traces, payload, "
        "headers and result; where its queue keeps the full history, each change of its state. With --watch, print "
        "each change of its state until it ends, and exit 1 if it did not succeed.",
    )
    job.add_argument("id")
    job.add_argument("--watch", action="store_true", help="wait until it has ended, and print each change of its state")
    cancel = add_command(
        commands,
        "cancel",
        "cancel a job",
        _cancel,
        "Cancel a job. One that waits ends at once; one that runs is told when its worker next keeps its lease.",
    )
    cancel.add_argument("id")


async def _show(client: Client, given: argparse.Namespace) -> int:
    handle = client.job(given.id)
    job = await _watched(handle) if given.watch else await handle.job()
    events = await handle.events()
    if given.json:
        print(json.dumps({**job_info(job), "events": [_event(each) for each in events]}))
    else:
        print("\n".join(_lines(job, events)))
    return 1 if given.watch and job.state != "succeeded" else 0


async def _watched(handle: JobHandle) -> Job:
    """How it ended; what comes before is printed as it happens, where it does not mix with the answer."""
    before: tuple[Any, ...] = ()
    while True:
        job = await handle.job()
        if job.state is None or job.state.finished:
            return job
        if (job.state, job.attempt) != before:
            before = job.state, job.attempt
            print(f"{job.state}, attempt {job.attempt}", file=sys.stderr, flush=True)
        await asyncio.sleep(WATCH_SECONDS)


def _lines(job: Job, events: list[Event]) -> list[str]:
    info = job_info(job)
    plain: dict[str, Any] = {"id": job.id, **info}
    lines = [f"{name:<17} {printable(str(plain[name]))}" for name in ("id", *SHOWN, *TIMES) if plain[name] is not None]
    if job.headers:
        lines.append(f"{'headers':<17} {json.dumps(plain['headers'])}")
    payload = info["payload_base64"] if "payload_base64" in info else json.dumps(info["payload"])
    lines.append(f"{'payload':<17} {payload}")
    if job.result is not None:
        lines.append(f"{'result':<17} {json.dumps(info['result'])}")
    if events:
        lines += ["history", *(f"  {event.at.isoformat('T', 'seconds')}  {_event_text(event)}" for event in events)]
    if job.error:
        lines += ["error", *(f"  {printable(line)}" for line in job.error.splitlines())]
    return lines


def _event_text(event: Event) -> str:
    """A change of state; of an error, its first line."""
    return printable(f"{event.state:<10} {(event.detail or '').partition(chr(10))[0]}").rstrip()


def _event(event: Event) -> dict[str, Any]:
    return {"at": event.at.isoformat(), "state": event.state, "detail": event.detail}


async def _cancel(client: Client, given: argparse.Namespace) -> int:
    answer = await client.job(given.id).cancel()
    if given.json:
        print(json.dumps({"id": given.id, "answer": answer}))
    elif answer is CancelAnswer.NOT_FOUND:
        raise NotFound(f"nothing is known of job {given.id} (any more)")
    else:
        print(ANSWERS[answer])
    return 0 if answer in (CancelAnswer.CANCELED, CancelAnswer.REQUESTED) else 1


ANSWERS = {
    CancelAnswer.CANCELED: "canceled",
    CancelAnswer.REQUESTED: "it runs: its worker is told when it next keeps the lease",
    CancelAnswer.FINISHED: "it had ended before",
}
