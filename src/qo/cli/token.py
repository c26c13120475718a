"""`qo token create|list|revoke`: who may come in."""

from __future__ import annotations

import argparse
import json
from datetime import datetime, timedelta
from typing import Any

from qo.cli.opened import add_command
from qo.cli.output import print_table
from qo.client.client import Client
from qo.core.access import Scope, Token
from qo.core.errors import Invalid, NotFound


def add_to(commands: Any) -> None:
    token: argparse.ArgumentParser = commands.add_parser(
        "token",
        help="create, list or revoke the tokens that a server asks for",
        description="Tokens for `qo serve --auth token`. They are kept in the store; their secrets are not.",
    )
    actions = token.add_subparsers(dest="action", metavar="ACTION")
    create = add_command(actions, "create", "make a token and print it, once", _create)
    create.add_argument("name", help="what it is for")
    create.add_argument(
        "--scope",
        action="append",
        choices=[each.value for each in Scope],
        required=True,
        help="may be given several times",
    )
    create.add_argument("--prefix", action="append", default=[], help="only queues whose names begin so")
    create.add_argument("--days", type=float, help="good for so long (default: until revoked)")
    add_command(actions, "list", "list the tokens, without their secrets", _list)
    revoke = add_command(actions, "revoke", "revoke a token; servers notice within ten seconds", _revoke)
    revoke.add_argument("id")


async def _create(client: Client, given: argparse.Namespace) -> int:
    if given.days is not None and not given.days > 0:
        raise Invalid("--days", f"must be greater than 0, not {given.days:g}")
    lasts = None if given.days is None else timedelta(days=given.days)
    token, text = await client.tokens.create(given.name, given.scope, prefixes=given.prefix, lasts=lasts)
    print(json.dumps({"id": token.id, "token": text}) if given.json else text)
    return 0


async def _list(client: Client, given: argparse.Namespace) -> int:
    found = await client.tokens.list()
    if given.json:
        print(json.dumps([_as_json(each) for each in found]))
        return 0
    rows = [
        [each.id, each.name, ",".join(each.scopes), ",".join(each.prefixes) or "all", _time(each.created_at) or "",
         _time(each.expires_at) or "never"]
        for each in found
    ]  # fmt: skip
    print_table(["id", "name", "scopes", "queues", "created", "expires"], rows, empty="no tokens")
    return 0


def _as_json(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": [*token.scopes],
        "prefixes": [*token.prefixes],
        "created_at": _time(token.created_at),
        "expires_at": _time(token.expires_at),
    }


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat("T", "seconds")


async def _revoke(client: Client, given: argparse.Namespace) -> int:
    if not await client.tokens.revoke(given.id):
        raise NotFound(f"there is no token {given.id}")
    print(json.dumps({"revoked": given.id}) if given.json else f"{given.id} is revoked")
    return 0
