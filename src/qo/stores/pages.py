"""How much one answer may hold: what engines decide alike about pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from qo.core.errors import TooLarge
from qo.core.outcome import Job, Trace

T = TypeVar("T")

PAGE_BYTES = 8 * 1024 * 1024
"""Payloads, headers and results on one page of jobs, dead letters or traces; a page has at least one item."""


def within(items: Iterable[T], size_of: Callable[[T], int], budget: int) -> tuple[list[T], bool]:
    """The first items that fit together, at least one; and whether one was left out. Asks for no more than it needs."""
    found: list[T] = []
    size = 0
    for item in items:
        size += size_of(item)
        if found and size > budget:
            return found, True
        found.append(item)
    return found, False


def job_size(job: Job | None) -> int:
    return 0 if job is None else len(job.payload) + len(job.result or b"")


def trace_size(trace: Trace) -> int:
    return len(trace.data)


def too_much(fit: int) -> TooLarge:
    """Why jobs that are asked for by their ids are not answered."""
    return TooLarge("ids", f"the jobs have more than {PAGE_BYTES} bytes; ask for fewer at a time, {fit} fit")
