"""Metrics on a port of this machine, for who scrapes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from qo.core.errors import Invalid
from qo.metrics.registry import Registry, prometheus_text

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
REQUEST_SECONDS = 5


@contextlib.asynccontextmanager
async def exposed(registry: Registry, port: int | None) -> AsyncIterator[None]:
    if port is None:
        yield
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                await reader.readuntil(b"\r\n\r\n")
                body = prometheus_text(registry.metrics()).encode()
                writer.write(HEAD % len(body) + body)
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, "127.0.0.1", port)
    except OSError as error:
        raise Invalid("metrics_port", f"cannot be served on port {port}: {error.strerror or error}") from None
    async with server:
        yield
