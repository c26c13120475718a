"""admin: the verbs that arrange things, each with a key so that it can be repeated."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from qo.client.remote.transport import Transport
from qo.core.lane import Filter, Start
from qo.core.message import MessageId, checked_id, id_text
from qo.core.outcome import CancelAnswer
from qo.core.queue import QueueSettings
from qo.wire.claims import write_start
from qo.wire.jobs import CANCEL_LIMIT, CancelBody, CanceledOne, CanceledReply, IdsReply, LettersBody
from qo.wire.queues import (
    CountReply,
    CreatedReply,
    DeletedReply,
    FilterGroupBody,
    PausedReply,
    SeekBody,
    SettingsReply,
    plain_changes,
    read_settings,
)

T = TypeVar("T")


def in_path(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


class RemoteAdmin:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def configure(self, queue: str, changes: Mapping[str, Any], *, nonce: str | None = None) -> QueueSettings:
        QueueSettings().changed(changes)  # what JSON cannot say is refused here
        reply = await self._write("PATCH", f"/v1/queues/{in_path(queue)}", plain_changes(changes), nonce, SettingsReply)
        return read_settings(reply.settings)

    async def delete_queue(self, queue: str, *, nonce: str | None = None) -> bool:
        return (await self._write("DELETE", f"/v1/queues/{in_path(queue)}", None, nonce, DeletedReply)).deleted

    async def purge(self, queue: str, *, nonce: str | None = None) -> int:
        return (await self._write("POST", f"/v1/queues/{in_path(queue)}/purge", None, nonce, CountReply)).count

    async def pause(self, queue: str, paused: bool, *, nonce: str | None = None) -> None:
        verb = "pause" if paused else "resume"
        await self._write("POST", f"/v1/queues/{in_path(queue)}/{verb}", None, nonce, PausedReply)

    async def create_group(
        self, queues: Sequence[str] | Filter, group: str, start: Start, *, nonce: str | None = None
    ) -> bool:
        body = FilterGroupBody(write_start(start))
        if isinstance(queues, Filter):
            body.namespace, body.task = queues.namespace, queues.task
        else:
            body.queues = list(queues)
        return (await self._write("PUT", f"/v1/groups/{in_path(group)}", body, nonce, CreatedReply)).created

    async def delete_group(self, queue: str, group: str, *, nonce: str | None = None) -> bool:
        path = f"/v1/queues/{in_path(queue)}/groups/{in_path(group)}"
        return (await self._write("DELETE", path, None, nonce, DeletedReply)).deleted

    async def seek(
        self, queue: str, group: str, to: Start | int, key: str | None = None, *, nonce: str | None = None
    ) -> int:
        path = f"/v1/queues/{in_path(queue)}/groups/{in_path(group)}/seek"
        body = SeekBody(to if isinstance(to, int) else write_start(to), key)
        return (await self._write("POST", path, body, nonce, CountReply)).count

    async def cancel(self, ids: Sequence[MessageId], group: str, *, nonce: str | None = None) -> Sequence[CancelAnswer]:
        if len(ids) == 1:
            path = f"/v1/jobs/{id_text(ids[0])}/cancel?group={in_path(group)}"
            return [(await self._write("POST", path, None, nonce, CanceledOne)).answer]
        answers: list[CancelAnswer] = []
        for start in range(0, len(ids), CANCEL_LIMIT):
            body = CancelBody([id_text(each) for each in ids[start : start + CANCEL_LIMIT]], group)
            own = nonce if nonce is None or start == 0 else f"{nonce}-{start}"
            answers += (await self._write("POST", "/v1/jobs/cancel", body, own, CanceledReply)).answers
        return answers

    async def retry_dead(
        self, queue: str, group: str, ids: Sequence[MessageId] | None, *, nonce: str | None = None
    ) -> Sequence[MessageId]:
        path = f"/v1/queues/{in_path(queue)}/dead/retry"
        reply = await self._write("POST", path, _letters(group, ids), nonce, IdsReply)
        return [checked_id("id", each) for each in reply.ids]

    async def purge_dead(
        self, queue: str, group: str, ids: Sequence[MessageId] | None, *, nonce: str | None = None
    ) -> int:
        path = f"/v1/queues/{in_path(queue)}/dead/purge"
        return (await self._write("POST", path, _letters(group, ids), nonce, CountReply)).count

    async def _write(self, method: str, path: str, body: Any, nonce: str | None, kind: type[T]) -> T:
        answer = await self._transport.call(method, path, body, key=nonce or secrets.token_hex(16))
        return msgspec.json.decode(answer.body, type=kind)


def _letters(group: str, ids: Sequence[MessageId] | None) -> LettersBody:
    return LettersBody(None if ids is None else [id_text(each) for each in ids], group)
