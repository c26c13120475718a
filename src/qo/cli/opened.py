"""A client for a command: on the store or server that it names."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from qo.cli.configuration import TOKEN_VARIABLE, read_configuration, token_for
from qo.client.client import Client
from qo.connect import connect
from qo.core.errors import NotFound, Unauthenticated
from qo.stores.opening import store_exists, without_password

PATIENCE_SECONDS = 5
"""How long a command looks for a server that answers."""
MAKE_STORES = ("push", "token")

Run = Callable[[Client, argparse.Namespace], Awaitable[int]]


def on_a_store(command: argparse.ArgumentParser, run: Run) -> None:
    """Give a command the options that say where it works, and run it there."""
    command.add_argument(
        "--store",
        metavar="URL",
        help="a store (sqlite:///…, postgresql://…) or a server (http://…); default: the configured one",
    )
    command.add_argument("--token", help="the token for a server (default: the variable QO_TOKEN)")
    command.add_argument("--config", metavar="FILE", help="the configuration (default qo.toml, if there is one)")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=lambda given: asyncio.run(_opened(given, run)))


async def _opened(given: argparse.Namespace, run: Run) -> int:
    configuration = read_configuration({"store": given.store}, path=given.config)
    url = str(configuration["store"])
    remote = url.startswith(("http://", "https://"))
    if given.command not in MAKE_STORES and not remote and not await store_exists(url):
        raise NotFound(f"there is no store at {without_password(url)} yet; the first push makes it")
    try:
        options: dict[str, Any] = (
            {"token": token_for(configuration, given.token)}
            if remote
            else {"encryption_key": configuration["encryption.key"]}
        )
        async with connect(url, patience=PATIENCE_SECONDS, **options) as client:
            return await run(client, given)
    except Unauthenticated as error:
        raise Unauthenticated(f"{error}; here: --token, or the variable {TOKEN_VARIABLE}") from None


def add_command(
    commands: Any, name: str, help: str, run: Run, description: str | None = None
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=help, description=description or help)
    on_a_store(command, run)
    return command
