"""`qo completion`: what a shell needs to complete commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from qo.core.errors import Invalid

SHELLS = ("bash", "zsh", "tcsh")


def add_to(commands: Any, main: Callable[[], argparse.ArgumentParser]) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print what a shell needs to complete commands",
        description="Print a script that teaches a shell the commands and options of qo: "
        '`eval "$(qo completion bash)"`, or put its output where your shell looks for completions.',
    )
    command.add_argument("shell", choices=SHELLS)
    command.set_defaults(run=lambda given: _print(given.shell, main()))


def _print(shell: str, main: argparse.ArgumentParser) -> int:
    try:
        import shtab  # noqa: PLC0415 - only when asked for
    except ImportError:
        raise Invalid("completion", "needs shtab; install it with: pip install 'qo-queue[cli]'") from None
    print(shtab.complete(main, shell))
    return 0
