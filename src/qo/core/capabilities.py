"""What an engine can do beyond what every engine does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Callers ask these, never a URL's scheme; the conformance suite marks differences by them and by nothing else."""

    names: bool
    """Messages have names in their lanes, by which they are found and acknowledged: `Wires`."""
    seeks_by_offset: bool
    """A group can be moved to an offset, not only to the start, the end or a time."""
    lists_lanes: bool
    """`Inspect.lanes` lists the lanes of a queue."""
    enqueues_in_sql: bool
    """A message can be enqueued in a user's own database transaction."""
    wakes_others: bool
    """A commit wakes waiters in other processes. `must_poll` says whether that works in this process."""
    serves_many_processes: bool
    """Several serving processes may stand before one store."""
    migrates: bool
    """The schema is brought forward by `qo migrate`, apart from opening the store."""
