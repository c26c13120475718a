"""`qo dead list|show|retry|purge`: dead letters."""

from __future__ import annotations

import argparse
import json
from typing import Any

from qo.cli.opened import add_command
from qo.cli.output import print_table, printable, progress
from qo.cli.queues import check_sure
from qo.client.client import Client
from qo.client.dead import DeadLetters
from qo.client.job_info import first_line, letter_info
from qo.core.errors import NotFound
from qo.core.outcome import DeadLetter

RETRIED_AT_ONCE = 1000
"""Dead letters that one call pushes again."""


def add_to(commands: Any) -> None:
    dead: argparse.ArgumentParser = commands.add_parser(
        "dead", help="list, show, retry or purge dead letters", description="Messages that used up their attempts."
    )
    actions = dead.add_subparsers(dest="action", metavar="ACTION")
    listing = add_command(actions, "list", "list dead letters, oldest first", _list)
    listing.add_argument("queue")
    listing.add_argument("--limit", type=int, default=20, help="how many (default 20)")
    listing.add_argument("--after", metavar="ID", help="begin after this one")
    show = add_command(actions, "show", "show a dead letter: its error with its trace, payload and headers", _show)
    show.add_argument("queue")
    show.add_argument("id")
    retry = add_command(actions, "retry", "push dead letters again, addressed to their group", _retry)
    retry.add_argument("queue")
    retry.add_argument("ids", nargs="*", help="which (default: all that there are)")
    purge = add_command(actions, "purge", "remove dead letters", _purge)
    purge.add_argument("queue")
    purge.add_argument("ids", nargs="*", help="which (default: all)")
    purge.add_argument("--yes", action="store_true", help="do not ask")
    for each in (listing, show, retry, purge):
        each.add_argument("--group", default="default", help="whose (default: default)")


def _letters(client: Client, given: argparse.Namespace) -> DeadLetters:
    return client.queue(given.queue).group(given.group).dead


async def _list(client: Client, given: argparse.Namespace) -> int:
    found = await _letters(client, given).list(after=given.after, limit=given.limit)
    if given.json:
        print(json.dumps([letter_info(letter) for letter in found]))
        return 0
    rows = [
        [each.id, each.kind, each.key or "", str(each.attempts), each.reason, first_line(each.error)[:80]]
        for each in found
    ]
    print_table(["id", "kind", "key", "attempts", "reason", "error"], rows, empty="no dead letters")
    return 0


async def _show(client: Client, given: argparse.Namespace) -> int:
    letter = await _letters(client, given).get(given.id)
    if letter is None:
        raise NotFound(f"'{given.queue}' has no dead letter {given.id} of group '{given.group}'")
    print(json.dumps(letter_info(letter)) if given.json else "\n".join(_lines(letter)))
    return 0


def _lines(letter: DeadLetter) -> list[str]:
    info = letter_info(letter)
    named = ("id", "queue", "group", "kind", "key", "priority", "attempts", "losses", "reason", "created_at", "died_at")
    plain = dict(info)
    lines = [f"{name:<11} {printable(str(plain[name]))}" for name in named if plain[name] is not None]
    if letter.headers:
        lines.append(f"{'headers':<11} {json.dumps(info['headers'])}")
    payload = info["payload_base64"] if "payload_base64" in info else json.dumps(info["payload"])
    lines.append(f"{'payload':<11} {payload}")
    return [*lines, "error", *(f"  {printable(line)}" for line in letter.error.splitlines())]


async def _retry(client: Client, given: argparse.Namespace) -> int:
    letters = _letters(client, given)
    total = len(given.ids) or (await client.queue(given.queue).group(given.group).depth()).dead
    news: list[str] = []
    with progress("pushing again", total) as advance:
        for start in range(0, total, RETRIED_AT_ONCE):
            step = await letters.retry(*given.ids[start : start + RETRIED_AT_ONCE])
            news += step
            advance(len(step))
            if not step and not given.ids:
                break
    print(json.dumps({"ids": news}) if given.json else "\n".join([f"{len(news)} pushed again", *news]))
    return 0


async def _purge(client: Client, given: argparse.Namespace) -> int:
    check_sure(given, f"Remove {len(given.ids) or 'all'} dead letters of '{given.queue}'?")
    count = await _letters(client, given).purge(*given.ids)
    print(json.dumps({"count": count}) if given.json else f"{count} dead letters removed")
    return 0
