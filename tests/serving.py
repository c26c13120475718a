"""A `qo serve` of its own process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from tests.postgres import Server, new_schema


class Serving:
    """Starts when it is entered, and is told to stop when it is left."""

    def __init__(
        self, folder: Path, *flags: str, name: str = "server", environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.log = folder / f"{name}.log"
        self._flags = flags
        self._environment = {**plain_environment(), **(environment or {})}
        self.url = ""

    def __enter__(self) -> Self:
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "qo.cli.main", "serve", "--port", "0", *self._flags],
                cwd=self.folder,
                env=self._environment,
                stderr=log,
            )
        while "listening on " not in self.said():
            assert self.process.poll() is None, self.said()
            time.sleep(0.01)
        self.url = self.said().partition("listening on ")[2].partition(",")[0]
        self._answers()
        return self

    def _answers(self) -> None:
        while True:
            with contextlib.suppress(URLError, ConnectionError), urlopen(f"{self.url}/livez", timeout=10):
                return
            time.sleep(0.01)

    def said(self) -> str:
        return self.log.read_text()

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(with_signal)
        return self.process.wait(30)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def plain_environment() -> dict[str, str]:
    """Without settings of whoever runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("QO_", "POLL_", "QUEUE_"))}


STORES = ["sqlite", "postgres", "http"]


@contextlib.contextmanager
def store_url(kind: str, folder: Path, database: Server) -> Iterator[str]:
    """The URL of an empty store in this folder or database, or of a server before one."""
    if kind == "http":
        with Serving(folder) as server:
            yield server.url
    elif kind == "postgres":
        yield f"{database.url}&schema={new_schema()}"
    else:
        yield f"sqlite:///{folder}/qo.db"
