"""`qo schedules list|show|create|pause|resume|run|preview|delete`."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from qo.cli.opened import add_command
from qo.cli.output import print_table, printable
from qo.cli.queues import check_sure
from qo.client.client import Client
from qo.core.errors import Invalid
from qo.core.moments import checked_time
from qo.core.names import DEFAULT_KIND
from qo.core.schedule import DEFAULT_TIMEZONE, CatchUp, Overlap, RunInfo, ScheduleInfo
from qo.core.slots import Fold, Gap
from qo.wire.schedules import write_schedule


def add_to(commands: Any) -> None:
    schedules: argparse.ArgumentParser = commands.add_parser(
        "schedules",
        help="list, show, create, pause, resume, run, preview or delete schedules",
        description="Rules that push a message when they are due.",
    )
    actions = schedules.add_subparsers(dest="action", metavar="ACTION")
    listing = add_command(actions, "list", "list schedules, by name", _list)
    listing.add_argument("--tag", help="those that have it")
    listing.add_argument("--limit", type=int, default=100, help="how many (default 100)")
    listing.add_argument("--after", metavar="NAME", default="", help="begin after this one")
    _named(add_command(actions, "show", "show a schedule: its rule in words, next slots and newest runs", _show))
    create = _named(add_command(actions, "create", "make a schedule, or with --replace change it", _create))
    create.add_argument("queue")
    create.add_argument("payload", nargs="?", default="null", help="JSON (default null)")
    create.add_argument("--kind", default=DEFAULT_KIND, help="the name of the task that handles it")
    create.add_argument("--key", help="messages of one key are delivered in order")
    create.add_argument("--replace", action="store_true", help="if there is one of that name, give it this rule")
    create.add_argument(
        "--catch-up",
        choices=[each.value for each in CatchUp],
        default=CatchUp.LAST.value,
        help="of slots that were missed",
    )
    create.add_argument(
        "--overlap",
        choices=[each.value for each in Overlap],
        default=Overlap.ALLOW.value,
        help="while an earlier job runs",
    )
    create.add_argument("--tag", action="append", default=[], dest="tags", help="to list and pause it by; repeatable")
    _rule_options(create)
    for name, help, run in (("pause", "pause schedules", _pause), ("resume", "let schedules go on", _resume)):
        each = add_command(actions, name, f"{help}, by name or by tag", run)
        each.add_argument("names", nargs="*", metavar="NAME")
        each.add_argument("--tag", help="all that have it")
        each.add_argument("--note", help="why; it is shown with the schedule")
    fire = _named(add_command(actions, "run", "push a schedule's message now", _run))
    fire.add_argument("--label", help="why; it is shown with the run")
    preview = add_command(
        actions, "preview", "show the next slots of a schedule, or of a rule; stores nothing", _preview
    )
    preview.add_argument("name", nargs="?", help="of a schedule; or give a rule")
    preview.add_argument("--count", type=int, default=5, help="how many (default 5)")
    preview.add_argument("--from", type=_time, dest="after", metavar="TIME", help="begin after that time (default now)")
    _rule_options(preview)
    delete = _named(add_command(actions, "delete", "remove a schedule; jobs that it pushed stay", _delete))
    delete.add_argument("--yes", action="store_true", help="do not ask")


def _choice(command: argparse.ArgumentParser, flag: str, choice: type[StrEnum], default: StrEnum, help: str) -> None:
    command.add_argument(flag, choices=[each.value for each in choice], default=default.value, help=help)


def _named(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument("name")
    return command


def _rule_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--cron", help="a rule of 5 fields, 6 with seconds first, or @hourly and the like")
    command.add_argument("--every", help="so long: seconds, or text such as 1h30m")
    command.add_argument("--at", type=_time, metavar="TIME", help="once, at that time")
    command.add_argument("--timezone", default=DEFAULT_TIMEZONE, help="whose wall clock --cron speaks of (default UTC)")
    command.add_argument(
        "--dst-gap",
        choices=[each.value for each in Gap],
        default=Gap.SHIFT.value,
        help="of times that the clock leaves out",
    )
    command.add_argument(
        "--dst-fold",
        choices=[each.value for each in Fold],
        default=Fold.FIRST.value,
        help="of times that the clock shows twice",
    )
    command.add_argument("--jitter", default=0.0, help="each slot fires up to so much later")


def _time(text: str) -> datetime:
    try:
        return checked_time("time", datetime.fromisoformat(text))
    except (ValueError, Invalid) as error:
        raise argparse.ArgumentTypeError(f"{error}; write 2026-01-31T09:00:00+01:00") from None


def _rule(given: argparse.Namespace) -> dict[str, Any]:
    return {
        "cron": given.cron,
        "every": given.every,
        "at": given.at,
        "timezone": given.timezone,
        "dst_gap": given.dst_gap,
        "dst_fold": given.dst_fold,
        "jitter": given.jitter,
    }


async def _list(client: Client, given: argparse.Namespace) -> int:
    found = await client.schedules.list(tag=given.tag, after=given.after, limit=given.limit)
    if given.json:
        print(json.dumps([_info(each) for each in found]))
        return 0
    rows = [
        [each.name, each.plan.target.queue, each.rule, _next(each), _last(each), str(each.fired), str(each.skipped)]
        for each in found
    ]
    print_table(["name", "queue", "rule", "next", "last", "fired", "skipped"], rows, empty="no schedules")
    return 0


def _next(info: ScheduleInfo) -> str:
    if info.paused:
        return "paused"
    return _moment(info.coming[0].fires_at) if info.coming else "never"


def _last(info: ScheduleInfo) -> str:
    return _outcome(info.runs[0]) if info.runs else ""


def _outcome(run: RunInfo) -> str:
    if run.skipped is not None:
        return f"skipped: {run.skipped}"
    return "unknown" if run.outcome is None else str(run.outcome)


def _moment(time: datetime) -> str:
    return time.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _info(info: ScheduleInfo) -> Any:
    return json.loads(msgspec.json.encode(write_schedule(info)))


async def _show(client: Client, given: argparse.Namespace) -> int:
    _print(await client.schedules.get(given.name), given)
    return 0


def _print(info: ScheduleInfo, given: argparse.Namespace) -> None:
    if given.json:
        print(json.dumps(_info(info)))
        return
    plan, target = info.plan, info.plan.target
    said = {
        "name": info.name,
        "rule": f"{info.rule} ({plan.timezone})",
        "pushes": f"kind {target.kind} to {target.queue}",
        "state": f"paused: {info.note or 'no note'}" if info.paused else "active",
        "fired": f"{info.fired}, skipped {info.skipped}, failed in a row {info.failures}",
        "error": info.error,
        "tags": ", ".join(plan.tags) or None,
    }
    print("\n".join(f"{name:<8} {printable(str(value))}" for name, value in said.items() if value is not None))
    print("next" if info.coming else "no slot is to come: it is over, or paused")
    for each in info.coming:
        print(f"  {_moment(each.fires_at)}")
    rows = [[_moment(each.slot), each.by.value, _outcome(each), each.job or "", each.label or ""] for each in info.runs]
    print_table(["slot", "by", "outcome", "job", "label"], rows, empty="no runs yet")


async def _create(client: Client, given: argparse.Namespace) -> int:
    try:
        payload = json.loads(given.payload)
    except ValueError as error:
        raise Invalid("payload", f"is not JSON: {error}") from None
    make = client.schedules.put if given.replace else client.schedules.create
    info = await make(
        given.name,
        given.queue,
        payload,
        kind=given.kind,
        key=given.key,
        catch_up=given.catch_up,
        overlap=given.overlap,
        tags=given.tags,
        **_rule(given),
    )
    _print(info, given)
    return 0


async def _pause(client: Client, given: argparse.Namespace) -> int:
    return _changed(await client.schedules.pause(*given.names, tag=given.tag, note=given.note), "paused", given)


async def _resume(client: Client, given: argparse.Namespace) -> int:
    return _changed(await client.schedules.resume(*given.names, tag=given.tag, note=given.note), "resumed", given)


def _changed(count: int, done: str, given: argparse.Namespace) -> int:
    print(json.dumps({"count": count}) if given.json else f"{count} {done}")
    return 0


async def _run(client: Client, given: argparse.Namespace) -> int:
    run = await client.schedules.run(given.name, label=given.label)
    print(json.dumps({"job": run.job}) if given.json else f"pushed job {run.job}")
    return 0


async def _preview(client: Client, given: argparse.Namespace) -> int:
    rule = _rule(given) if (given.cron, given.every, given.at) != (None, None, None) else {}
    coming = await client.schedules.preview(given.name, count=given.count, after=given.after, **rule)
    if given.json:
        print(json.dumps([{"slot": each.slot.isoformat(), "fires_at": each.fires_at.isoformat()} for each in coming]))
    else:
        print("\n".join(_moment(each.fires_at) for each in coming) or "no slot is to come")
    return 0


async def _delete(client: Client, given: argparse.Namespace) -> int:
    check_sure(given, f"Remove schedule '{given.name}'?")
    removed = await client.schedules.delete(given.name)
    print(json.dumps({"deleted": removed}) if given.json else ("removed" if removed else "there was none"))
    return 0 if removed else 1
