"""`qo serve`: HTTP in front of a store."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from qo.cli.configuration import read_configuration
from qo.cli.opened import say_store
from qo.core.errors import Invalid
from qo.environment import FILE


def add_to(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="serve a store over HTTP",
        description="Serve a store over HTTP with long polling, until SIGTERM or SIGINT; then answer those who wait, "
        "finish what is under way and exit 0. Settings come from qo.toml, the environment (QO_…) and these flags, in "
        "that order of increasing weight; `qo config` shows them.",
    )
    command.add_argument(
        "--store", metavar="URL", help="where messages are kept (default: QO_STORE, else qo.toml, else sqlite:///qo.db)"
    )
    command.add_argument("--host", help="the address to listen on (default 127.0.0.1)")
    command.add_argument("--port", type=int, help="the port (default 6632; 0: any)")
    command.add_argument("--workers", type=int, help="processes that share the port; PostgreSQL only (default 1)")
    command.add_argument("--auth", choices=["none", "token"], help="whether calls need a token (default none)")
    command.add_argument(
        "--insecure", action="store_true", default=None, help="listen beyond this machine without authentication"
    )
    command.add_argument("--config", metavar="FILE", help=f"the configuration (default {FILE}, if there is one)")
    command.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help="(default info)")
    command.add_argument("--log-format", choices=["text", "json"], help="(default text)")
    command.add_argument("--log-requests", action="store_true", default=None, help="write a line for each request")
    command.set_defaults(run=_serve)


def _serve(given: argparse.Namespace) -> int:
    flags = {
        "store": given.store,
        "server.host": given.host,
        "server.port": given.port,
        "server.workers": given.workers,
        "server.auth": given.auth,
        "server.insecure": given.insecure,
        "log.level": given.log_level,
        "log.format": given.log_format,
        "log.requests": given.log_requests,
    }
    configuration = read_configuration(flags, path=given.config)
    for warning in configuration.warnings:
        print(f"qo serve: {warning}", file=sys.stderr)
    say_store("serve", configuration.store)
    try:
        from qo.server.serve import serve  # noqa: PLC0415 - only when asked for
    except ImportError as error:
        if error.name not in ("uvicorn", "httptools", "uvloop", "jwt", "cryptography"):
            raise
        raise Invalid("serve", "needs the HTTP server; install it with: pip install 'qo-queue[server]'") from None
    return serve(configuration.server_settings())
