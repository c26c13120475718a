"""workers: who registered, and who of them lives. A process that can be seen from here vouches for its workers."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from qo.core.worker import (
    FORGET_AFTER,
    WORKERS_LIMIT,
    Heartbeat,
    WaitingKind,
    WorkerInfo,
    WorkerState,
    unserved,
)
from qo.stores.sqlite.moments import moment, span
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Transaction

SQL = statements("workers")
LIST_LIMIT = 10 * WORKERS_LIMIT

Process = tuple[str, int, str]
"""Its host, its id, and when it began."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Heartbeat).decode


def this_process() -> Process:
    return socket.gethostname(), os.getpid(), _began(os.getpid()) or ""


def heartbeat(tx: Transaction, heartbeats: Sequence[Heartbeat]) -> bool:
    """Write heartbeats down. True: this process vouches for these workers, until it disowns them."""
    keeper = this_process()
    for each in heartbeats:
        tx.run(SQL.heartbeat, each.id, _encode(each).decode(), tx.now, *keeper)
    for known in every(tx):
        if known.state is not WorkerState.ALIVE and known.seen_at <= moment(tx.now - span(FORGET_AFTER)):
            tx.run(SQL.remove, known.id)
    return True


def adopt(tx: Transaction, id: str) -> bool:
    """Vouch for a worker that registered elsewhere. Whether it is known."""
    return tx.run(SQL.adopt, id, tx.now, *this_process()) > 0


def disown(tx: Transaction, ids: Sequence[str]) -> None:
    keeper = this_process()
    for id in ids:
        tx.run(SQL.disown, id, *keeper)


def deregister(tx: Transaction, ids: Sequence[str]) -> None:
    for id in ids:
        tx.run(SQL.remove, id)


def every(tx: Transaction) -> list[WorkerInfo]:
    found = []
    for said, seen_at, *keeper in tx.rows(SQL.list, LIST_LIMIT):
        state = WorkerState.GONE if keeper[0] is None else _state(keeper[0], keeper[1], keeper[2])
        found.append(WorkerInfo(**msgspec.structs.asdict(_decode(said)), seen_at=moment(seen_at), state=state))
    living = [each for each in found if each.state is not WorkerState.GONE]
    gone = [each for each in found if each.state is WorkerState.GONE]
    return sorted([*living, *gone][:WORKERS_LIMIT], key=lambda each: each.id)


def nobody_takes(tx: Transaction) -> tuple[WaitingKind, ...]:
    rows = tx.rows(SQL.waiting_kinds, WORKERS_LIMIT, tx.now)
    waiting = [WaitingKind(queue=row[0], group=row[1], kind=row[2], oldest_at=moment(row[3])) for row in rows]
    return unserved(waiting, every(tx) if waiting else (), moment(tx.now))


def _state(host: str, pid: int, start: str) -> WorkerState:
    if host != socket.gethostname():
        return WorkerState.UNKNOWN
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return WorkerState.GONE
    except PermissionError:
        pass  # it runs, as another user
    began = _began(pid)
    return WorkerState.ALIVE if began is None or not start or began == start else WorkerState.GONE


def _began(pid: int) -> str | None:
    """When a process began, in the kernel's ticks; None where that cannot be read, or it is a zombie's."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return None
    fields = rest.split()
    return "" if fields[0] == "Z" else fields[19]
