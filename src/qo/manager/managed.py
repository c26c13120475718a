"""The worker's side of being managed: it reports over a socket that it was given, and stops when that ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket

from qo.worker.options import WorkerRunOptions
from qo.worker.worker import Ran, Worker

log = logging.getLogger("qo.worker")

SOCKET_OPTION = "--manager-socket"
"""Names the file descriptor that a manager gives to its worker."""
REPORT_SECONDS = 1.0


async def run_managed(worker: Worker, options: WorkerRunOptions, descriptor: int) -> Ran:
    """Run until stopped, or until the manager is gone: nobody would stop this worker then."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    parts = [asyncio.create_task(_report(worker, writer)), asyncio.create_task(_outlive(worker, reader))]
    try:
        return await worker.run(options)
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            await _say(worker, writer)  # what ended since the last report
        writer.close()


async def _report(worker: Worker, writer: asyncio.StreamWriter) -> None:
    said = (0, 0)
    with contextlib.suppress(ConnectionError):
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if worker.standing != said:
                said = worker.standing
                await _say(worker, writer)


async def _say(worker: Worker, writer: asyncio.StreamWriter) -> None:
    writer.write(json.dumps(worker.standing).encode() + b"\n")
    await writer.drain()


async def _outlive(worker: Worker, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read()
    log.warning("the manager is gone: stopping")
    worker.stop()
