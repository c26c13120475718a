"""A lease's row, and what is common to settling it and losing it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Row, Transaction

SQL = statements("advance")


@dataclass(slots=True)
class LeaseRow:
    """One claim on one lane. `settled` has a bit for each offset from `first` on."""

    token: str
    lane_id: int
    cursor_id: int
    first: int
    from_offset: int
    to_offset: int
    settled: int
    retried: list[int]
    canceled: set[int]
    started: dict[int, int]
    owner: str | None
    expires_at: int

    def unsettled(self) -> list[int]:
        """The offsets of an open lane's range that are not settled."""
        return [o for o in range(self.from_offset, self.to_offset) if not self.settled >> (o - self.first) & 1]

    def mark(self, offset: int) -> None:
        self.settled |= 1 << (offset - self.first)

    def is_marked(self, offset: int) -> bool:
        return bool(self.settled >> (offset - self.first) & 1)

    def settled_bytes(self) -> bytes:
        return self.settled.to_bytes((self.settled.bit_length() + 7) // 8, "little")


def read_lease(row: Row) -> LeaseRow:
    token, lane_id, cursor_id, first, start, end, settled, retried, canceled, started, owner, expires_at = row
    return LeaseRow(
        token,
        lane_id,
        cursor_id,
        first,
        start,
        end,
        int.from_bytes(settled, "little") if settled else 0,
        json.loads(retried) if retried else [],
        set(json.loads(canceled)) if canceled else set(),
        {int(k): v for k, v in json.loads(started).items()} if started else {},
        owner,
        expires_at,
    )


def end_lease(tx: Transaction, lease: LeaseRow, at: int) -> None:
    end_leases(tx, (lease,), at)


def end_leases(tx: Transaction, leases: Iterable[LeaseRow], at: int) -> None:
    tx.many(SQL.end_lease, [(lease.token, lease.lane_id, at) for lease in leases])


def offsets_text(offsets: Collection[int]) -> str | None:
    return json.dumps(sorted(offsets)) if offsets else None
