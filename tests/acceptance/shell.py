"""A document's shell lines, run by `sh`, with a `curl` and a `qo` of our own before those of the machine.

Not every machine has curl, and this one ends each answer with a new line, as documents show it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

REPOSITORY = Path(__file__).parents[2]


def run_lines(text: str, folder: Path) -> str:
    """What the lines print."""
    commands = folder / ".bin"
    _write_command(commands / "curl", "tests.acceptance.shell")
    _write_command(commands / "qo", "qo.cli.main")
    around = {name: value for name, value in os.environ.items() if not name.startswith("QO_")}
    done = subprocess.run(
        ["sh", "-eu", "-c", text],
        cwd=folder,
        env={**around, "PATH": f"{commands}:{around['PATH']}", "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def _write_command(path: Path, module: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
    path.chmod(0o755)


def curl(words: list[str]) -> str:
    """Options that other lines need are added here when they do."""
    known = argparse.ArgumentParser(prog="curl")
    known.add_argument("url")
    known.add_argument("-X", "--request")
    known.add_argument("-d", "--data")
    known.add_argument("-H", "--header", action="append", default=[])
    given = known.parse_args(words)
    url = given.url if "://" in given.url else f"http://{given.url}"
    method = given.request or ("POST" if given.data is not None else "GET")
    headers = dict(each.split(": ", 1) for each in given.header)
    data = None if given.data is None else given.data.encode()
    try:
        with urlopen(Request(url, data=data, method=method, headers=headers), timeout=60) as answer:
            return answer.read().decode()
    except HTTPError as error:
        with error:
            return error.read().decode()


if __name__ == "__main__":
    print(curl(sys.argv[1:]).rstrip("\n"))
