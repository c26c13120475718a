"""`qo config`: what is in effect, and where it came from."""

from __future__ import annotations

import argparse
import json
from typing import Any

from qo.cli.configuration import SECRETS, read_configuration, settings
from qo.cli.output import print_table
from qo.stores.opening import without_password


def add_to(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "config",
        help="show the settings in effect, and where each came from",
        description="Show every setting, its value and whether that is the default, or came from qo.toml, the "
        "environment or a flag. Passwords are not shown.",
    )
    command.add_argument("--config", metavar="FILE", help="the file to read (default qo.toml, if there is one)")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_show)


def _show(given: argparse.Namespace) -> int:
    configuration = read_configuration(path=given.config)
    configuration.server_settings()
    shown = {key: (_shown(key, value.value), value.source) for key, value in configuration.values.items()}
    if given.json:
        print(json.dumps({key: {"value": value, "source": source} for key, (value, source) in shown.items()}, indent=2))
        return 0
    known = settings()
    rows = [[key, str(value), source, known[key].variable] for key, (value, source) in shown.items()]
    print_table(["setting", "value", "from", "variable"], rows, empty="no settings")
    for warning in configuration.warnings:
        print(f"warning: {warning}")
    return 0


def _shown(key: str, value: Any) -> Any:
    if key in SECRETS and value:
        return "***"
    return without_password(value) if key == "store" else value
