"""Who listens to a file in this process: one commit is heard by every engine on it.

A program may open the same file more than once: a client that pushes, a worker by its
URL on a loop of its own. They share no connection, but what one commits wakes the
others at once, as if they shared one broker. Other processes are found out by polling.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from qo.core.message import MessageId
from qo.core.verbs import Hint

MEMORY = ":memory:"


class Ear(NamedTuple):
    """A broker's: its loop, what it does with hints, and the messages whose ends it awaits (a set that changes)."""

    loop: asyncio.AbstractEventLoop
    heard: Callable[[Hint], None]
    watched: set[MessageId]

    def __hash__(self) -> int:
        return id(self.watched)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ear) and other.watched is self.watched


class Ears:
    """The listeners on one file. Changed and read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[Ear, ...] = ()

    def add(self, ear: Ear) -> None:
        with self._lock:
            self._all = (*self._all, ear)

    def discard(self, ear: Ear) -> None:
        with self._lock:
            self._all = tuple(each for each in self._all if each != ear)

    def all(self) -> tuple[Ear, ...]:
        return self._all

    def watched(self) -> AbstractSet[MessageId]:
        """The messages whose ends somebody here awaits."""
        ears = self._all
        return ears[0].watched if len(ears) == 1 else frozenset().union(*(each.watched for each in ears))


_files: dict[str, Ears] = {}
_lock = threading.Lock()


def _forget() -> None:
    """A forked process has none of its parent's loops, and perhaps a copy of a lock that is held for ever."""
    global _lock  # noqa: PLW0603 - the parent's
    _files.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def ears_of(path: str) -> Ears:
    """The listeners on a file, whatever path names it. A store in memory shares them with no other engine."""
    if path == MEMORY:
        return Ears()
    with _lock:
        return _files.setdefault(os.path.realpath(path), Ears())
