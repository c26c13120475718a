"""The way from a program without an event loop into one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from qo.core.errors import Closed

T = TypeVar("T")


class Portal:
    """A thread with an event loop, and the way in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="qo-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. An interrupt cancels it."""
        if not self._thread.is_alive():
            coroutine.close()
            raise Closed("this client was closed")
        future = asyncio.run_coroutine_threadsafe(_without_exits(coroutine), self._loop)
        try:
            answer, ended_by = future.result()
        except BaseException:
            future.cancel()
            raise
        if ended_by is not None:
            raise ended_by
        return answer  # type: ignore[return-value]

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _without_exits(coroutine: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """What would end the loop's thread is carried to the caller's instead."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as ended_by:
        return None, ended_by
