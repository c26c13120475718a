"""inspect: bounded reads, asked of a server."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from qo.client.remote.admin import in_path
from qo.client.remote.transport import Transport
from qo.client.remote.workers import demand_there, remote_scaling
from qo.core.message import MessageId, id_text
from qo.core.outcome import DeadLetter, Depth, Event, GroupInfo, Health, Job, JobState, LaneInfo, QueueInfo
from qo.core.scaling import Demand
from qo.wire.jobs import DeadReply, EventsReply, FoundReply, JobsReply, LookupBody, read_dead, read_job
from qo.wire.queues import GroupsReply, LanesReply, QueueBody, QueuesReply, read_group, read_queue

T = TypeVar("T")


class RemoteInspect:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def queue(self, queue: str) -> QueueInfo:
        return read_queue(await self._read(f"/v1/queues/{in_path(queue)}", QueueBody))

    async def queues(self, after: str, limit: int) -> Sequence[QueueInfo]:
        reply = await self._read("/v1/queues", QueuesReply, after=after, limit=limit)
        return [read_queue(each) for each in reply.queues]

    async def groups(self, queue: str) -> Sequence[GroupInfo]:
        reply = await self._read(f"/v1/queues/{in_path(queue)}/groups", GroupsReply)
        return [read_group(each) for each in reply.groups]

    async def depth(self, queue: str, group: str) -> Depth:
        return await self._read(f"/v1/queues/{in_path(queue)}/depth", Depth, group=group)

    async def demand(self, queues: Sequence[str], group: str, kinds: Collection[str] | None) -> Demand:
        said = await remote_scaling(self._transport, queues, group, kinds)
        return Demand() if said is None else demand_there(said)

    async def lanes(self, queue: str, group: str, after: int, limit: int) -> Sequence[LaneInfo]:
        path = f"/v1/queues/{in_path(queue)}/lanes"
        return (await self._read(path, LanesReply, group=group, after=after, limit=limit)).lanes

    async def jobs(self, ids: Sequence[MessageId]) -> Sequence[Job | None]:
        body = LookupBody([id_text(each) for each in ids])
        answer = await self._transport.call("POST", "/v1/jobs/lookup", body)
        found = msgspec.json.decode(answer.body, type=FoundReply).jobs
        return [None if each is None else read_job(each) for each in found]

    async def list_jobs(self, queue: str, state: JobState | None, before: str | None, limit: int) -> Sequence[Job]:
        path = f"/v1/queues/{in_path(queue)}/jobs"
        reply = await self._read(path, JobsReply, state=state, before=before, limit=limit)
        return [read_job(each) for each in reply.jobs]

    async def events(self, id: MessageId) -> Sequence[Event]:
        return (await self._read(f"/v1/jobs/{id_text(id)}/events", EventsReply)).events

    async def dead(self, queue: str, group: str | None, after: str | None, limit: int) -> Sequence[DeadLetter]:
        path = f"/v1/queues/{in_path(queue)}/dead"
        reply = await self._read(path, DeadReply, group=group, after=after, limit=limit)
        return [read_dead(each) for each in reply.dead]

    async def health(self) -> Health:
        return await self._read("/v1/health", Health)

    async def ready(self) -> None:
        await self._transport.call("GET", "/readyz")

    async def _read(self, path: str, kind: type[T], **query: Any) -> T:
        given = {name: value for name, value in query.items() if value is not None}
        asked = "?" + urlencode(given, quote_via=quote) if given else ""
        return msgspec.json.decode((await self._transport.call("GET", path + asked)).body, type=kind)
