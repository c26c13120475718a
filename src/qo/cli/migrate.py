"""`qo migrate`: bring a database's schema forward."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from qo.stores.opening import migrate


def add_to(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "migrate",
        help="bring a database's schema forward",
        description="Apply the migrations that a PostgreSQL schema has not seen, one at a time under a lock. Servers "
        "and workers do the same when they start; this does it beforehand. An older qo keeps working on a schema that "
        "is one version newer.",
    )
    command.add_argument("url", help="postgresql://…, with ?schema= if it is not qo")
    command.add_argument("--dry-run", action="store_true", help="say what would be applied, and change nothing")
    command.set_defaults(run=lambda given: asyncio.run(_migrate(given.url, given.dry_run)))


async def _migrate(url: str, dry_run: bool) -> int:
    names = await migrate(url, dry_run=dry_run)
    for name in names:
        print(f"{'would apply' if dry_run else 'applied'} {name}")
    if not names:
        print("nothing to do: the schema is up to date")
    return 0
