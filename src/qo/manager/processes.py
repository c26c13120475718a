"""Worker processes: started, heard, told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import Self

from qo.manager.managed import SOCKET_OPTION

LAST_WORDS_SECONDS = 1.0
"""What an ended worker reported last is read for so long; its end of the line is closed by then."""


class Child:
    """A worker in a process of its own. Its session is its own too: a terminal's signals reach the manager alone."""

    def __init__(self, process: asyncio.subprocess.Process, hearing: asyncio.Task[None]) -> None:
        self._process = process
        self._hearing = hearing
        self.began = time.monotonic()
        self.stopping = False
        self.finished = self.running = 0

    @classmethod
    async def start(cls, command: Sequence[str]) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    SOCKET_OPTION,
                    str(theirs.fileno()),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours)
        child = cls(process, asyncio.create_task(asyncio.sleep(0)))
        child._hearing = asyncio.create_task(child._hear(reader, writer))
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        code = await self._process.wait()
        await asyncio.wait([self._hearing], timeout=LAST_WORDS_SECONDS)
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)
        return code

    def stop(self) -> None:
        """Once: let tasks finish. Again: give them back now."""
        self.stopping = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """With the processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.finished, self.running = json.loads(line)
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()
