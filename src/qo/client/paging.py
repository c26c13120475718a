"""Paging: as many items as were asked for, page by page.

A store answers with no more than a budget of bytes, so a page may be shorter than asked
for though there is more. Whoever asks by a number gets that number.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar


class Identified(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Identified)


async def paged(
    fetch: Callable[[str | None, int], Awaitable[Sequence[T]]], start: str | None, limit: int
) -> Sequence[T]:
    """Ask for pages, each from where the one before ended, until there are enough or no more."""
    found: list[T] = []
    while len(found) < limit:
        page = await fetch(found[-1].id if found else start, limit - len(found))
        found += page
        if not page:
            break
    return found
