"""`qo`: reads the command line and runs a command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from qo.cli import (
    completion,
    config,
    dead,
    demo,
    doctor,
    job,
    messages,
    migrate,
    queues,
    schedules,
    serve,
    token,
    work,
    workers,
)
from qo.core.errors import QoError
from qo.core.version import __version__


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(
        prog="qo",
        description="qo is a durable queue and the workers that empty it.",
        epilog="`qo COMMAND --help` explains a command. Begin with `qo demo`, or with `qo push hello '\"world\"'` and "
        "`qo pop hello`.",
    )
    main.add_argument("--version", action="version", version=f"qo {__version__}")
    commands = main.add_subparsers(dest="command", metavar="COMMAND")
    for each in (serve, work, workers, messages, queues, job, dead, schedules, token, config, demo, doctor, migrate):
        each.add_to(commands)
    completion.add_to(commands, parser)
    return main


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: done. 1: it found or met a problem. 2: the command line is wrong. 130: interrupted."""
    known = parser()
    given = known.parse_args(arguments)
    if given.command is None:
        known.print_help()
        return 0
    if not hasattr(given, "run"):  # a command of several, called bare
        known.parse_args([given.command, "--help"])
    try:
        code: int = given.run(given)
    except QoError as error:
        print(f"qo {given.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who reads us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
