"""schedules: the verbs that are more than one operation makes of them by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any

import msgspec

from qo.client.remote.calls import RemotePart, call, path_of
from qo.client.remote.transport import Answer
from qo.core.errors import NotFound
from qo.core.schedule import Coming, Plan, Run, ScheduleInfo
from qo.wire.operations.schedules import (
    BACKFILL_SCHEDULE,
    CHANGE_SCHEDULE,
    CREATE_SCHEDULE,
    DELETE_SCHEDULE,
    FIRE_SCHEDULE,
    PREVIEW_SCHEDULE,
    PUT_SCHEDULE,
    SCHEDULE,
)
from qo.wire.schedules import (
    PlanChangesBody,
    PreviewReply,
    RunReply,
    RunsReply,
    ScheduleBody,
    change_fields,
    plan_fields,
    read_coming,
    read_run,
    read_schedule,
    write_plan,
)


class RemoteSchedules(RemotePart):
    """Listing and pausing come from their declarations."""

    PART = "schedules"

    async def create_schedule(self, name: str, plan: Plan, *, nonce: str | None = None) -> ScheduleInfo:
        answer = await call(self._transport, CREATE_SCHEDULE, {"name": name, **plan_fields(plan)}, nonce)
        return _info(answer)

    async def put_schedule(self, name: str, plan: Plan) -> tuple[bool, ScheduleInfo]:
        answer = await call(self._transport, PUT_SCHEDULE, {"name": name, **plan_fields(plan)})
        return answer.status == HTTPStatus.CREATED, _info(answer)

    async def change_schedule(self, name: str, changes: Mapping[str, Any], expected: int | None = None) -> ScheduleInfo:
        path = path_of(CHANGE_SCHEDULE, {"name": name})
        headers = None if expected is None else {"if-match": f'"{expected}"'}
        body = PlanChangesBody(**change_fields(changes))
        return _info(await self._transport.call(CHANGE_SCHEDULE.method, path, body, headers=headers))

    async def schedule(self, name: str) -> ScheduleInfo:
        return _info(await call(self._transport, SCHEDULE, {"name": name}))

    async def delete_schedule(self, name: str) -> bool:
        try:
            await call(self._transport, DELETE_SCHEDULE, {"name": name})
        except NotFound:
            return False
        return True

    async def run_schedule(self, name: str, label: str | None = None, *, nonce: str | None = None) -> Run:
        answer = await call(self._transport, FIRE_SCHEDULE, {"name": name, "label": label}, nonce)
        return read_run(msgspec.json.decode(answer.body, type=RunReply).run)

    async def backfill_schedule(
        self, name: str, begin: datetime, end: datetime, label: str | None = None, *, nonce: str | None = None
    ) -> Sequence[Run]:
        fields = {"name": name, "begin": begin, "end": end, "label": label}
        answer = await call(self._transport, BACKFILL_SCHEDULE, fields, nonce)
        return [read_run(each) for each in msgspec.json.decode(answer.body, type=RunsReply).runs]

    async def preview_schedule(
        self, name: str, plan: Plan | None, count: int, after: datetime | None = None
    ) -> Sequence[Coming]:
        said = None if plan is None else write_plan(plan)
        fields = {"name": name, "plan": said, "count": count, "after": after}
        answer = await call(self._transport, PREVIEW_SCHEDULE, fields)
        return read_coming(msgspec.json.decode(answer.body, type=PreviewReply).coming)


def _info(answer: Answer) -> ScheduleInfo:
    return read_schedule(msgspec.json.decode(answer.body, type=ScheduleBody))
