"""`qo dead list|retry|purge`: dead letters."""

from __future__ import annotations

import argparse
import json
from typing import Any

from qo.cli.opened import add_command
from qo.cli.queues import check_sure
from qo.cli.tables import table
from qo.client.client import Client
from qo.client.dead import DeadLetters


def add_to(commands: Any) -> None:
    dead: argparse.ArgumentParser = commands.add_parser(
        "dead", help="list, retry or purge dead letters", description="Messages that used up their attempts."
    )
    actions = dead.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = add_command(actions, "list", "list dead letters, oldest first", _list)
    listing.add_argument("queue")
    listing.add_argument("--limit", type=int, default=20, help="how many (default 20)")
    listing.add_argument("--after", metavar="ID", help="begin after this one")
    retry = add_command(actions, "retry", "push dead letters again, addressed to their group", _retry)
    retry.add_argument("queue")
    retry.add_argument("ids", nargs="*", help="which (default: up to a thousand of them)")
    purge = add_command(actions, "purge", "remove dead letters", _purge)
    purge.add_argument("queue")
    purge.add_argument("ids", nargs="*", help="which (default: all)")
    purge.add_argument("--yes", action="store_true", help="do not ask")
    for each in (listing, retry, purge):
        each.add_argument("--group", default="default", help="whose (default: default)")


def _letters(client: Client, given: argparse.Namespace) -> DeadLetters:
    return client.queue(given.queue).group(given.group).dead


async def _list(client: Client, given: argparse.Namespace) -> int:
    found = await _letters(client, given).list(after=given.after, limit=given.limit)
    if given.json:
        named = ("id", "kind", "key", "attempts", "losses", "reason", "error")
        print(json.dumps([{name: getattr(letter, name) for name in named} for letter in found]))
        return 0
    rows = [[each.id, each.kind, each.key or "", str(each.attempts), each.reason, each.error[:80]] for each in found]
    print(table(["id", "kind", "key", "attempts", "reason", "error"], rows) if rows else "no dead letters")
    return 0


async def _retry(client: Client, given: argparse.Namespace) -> int:
    news = await _letters(client, given).retry(*given.ids)
    print(json.dumps({"ids": list(news)}) if given.json else f"{len(news)} pushed again")
    return 0


async def _purge(client: Client, given: argparse.Namespace) -> int:
    check_sure(given, f"Remove {len(given.ids) or 'all'} dead letters of '{given.queue}'?")
    count = await _letters(client, given).purge(*given.ids)
    print(json.dumps({"count": count}) if given.json else f"{count} dead letters removed")
    return 0
