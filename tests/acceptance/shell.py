"""The lines of a document's shell, without a shell: `curl` and `qo`, as far as the documents use them."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def run_lines(text: str, folder: Path) -> str:
    """What the lines print, one after another; each ends its line."""
    said = ""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            said += {"curl": curl, "qo": command}[words[0]](words[1:], folder).rstrip("\n") + "\n"
    return said


def curl(words: list[str], folder: Path) -> str:
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


def command(words: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "qo.cli.main", *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("QO_")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout
