"""schedules: rules that push when they are due."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from qo.core.errors import Invalid, NotFound
from qo.core.schedule import ScheduleInfo
from qo.server.context import ServerContext
from qo.server.request import EMPTY, Request, Response, reply
from qo.wire.schedules import (
    BackfillBody,
    FireBody,
    NewScheduleBody,
    PlanBody,
    PlanChangesBody,
    PreviewBody,
    PreviewReply,
    RunReply,
    RunsReply,
    read_changes,
    read_plan,
    write_coming,
    write_run,
    write_schedule,
)

_new = msgspec.json.Decoder(NewScheduleBody)
_plan = msgspec.json.Decoder(PlanBody)
_changes = msgspec.json.Decoder(PlanChangesBody)
_fire = msgspec.json.Decoder(FireBody)
_backfill = msgspec.json.Decoder(BackfillBody)
_preview = msgspec.json.Decoder(PreviewBody)


def _shown(info: ScheduleInfo, status: int = HTTPStatus.OK) -> Response:
    return reply(write_schedule(info), status)._replace(headers=((b"etag", f'"{info.version}"'.encode()),))


async def create(context: ServerContext, request: Request) -> Response:
    body = request.read(_new)
    plan = read_plan(body)
    info = await context.broker.schedules.create_schedule(body.name, plan, nonce=request.nonce)
    return _shown(info, HTTPStatus.CREATED)


async def put(context: ServerContext, request: Request) -> Response:
    _refuse_conditions(request)
    created, info = await context.broker.schedules.put_schedule(request.path["name"], read_plan(request.read(_plan)))
    return _shown(info, HTTPStatus.CREATED if created else HTTPStatus.OK)


async def change(context: ServerContext, request: Request) -> Response:
    changes = read_changes(request.read(_changes))
    return _shown(
        await context.broker.schedules.change_schedule(request.path["name"], changes, _expected_version(request))
    )


def _refuse_conditions(request: Request) -> None:
    """A condition that was not looked at would be worse than none."""
    for name in ("If-Match", "If-None-Match"):
        if name.lower().encode() in request.headers:
            raise Invalid(name, "goes with PATCH alone; POST makes only what there is not")


def _expected_version(request: Request) -> int | None:
    given = request.headers.get(b"if-match")
    if given is None or given == b"*":
        return None
    text = given.decode("latin-1").removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise Invalid("If-Match", "must be the ETag that a read of the schedule gave")
    return int(text)


async def show(context: ServerContext, request: Request) -> Response:
    return _shown(await context.broker.schedules.schedule(request.path["name"]))


async def delete(context: ServerContext, request: Request) -> Response:
    _refuse_conditions(request)
    name = request.path["name"]
    if not await context.broker.schedules.delete_schedule(name):
        raise NotFound(f"there is no schedule '{name}'")
    return EMPTY


async def fire(context: ServerContext, request: Request) -> Response:
    label = request.read(_fire).label
    run = await context.broker.schedules.run_schedule(request.path["name"], label, nonce=request.nonce)
    return reply(RunReply(write_run(run)), HTTPStatus.ACCEPTED)


async def runs(context: ServerContext, request: Request) -> Response:
    info = await context.broker.schedules.schedule(request.path["name"])
    return reply(RunsReply([write_run(each) for each in info.runs]))


async def backfill(context: ServerContext, request: Request) -> Response:
    body = request.read(_backfill)
    found = await context.broker.schedules.backfill_schedule(
        request.path["name"], body.begin, body.end, body.label, nonce=request.nonce
    )
    return reply(RunsReply([write_run(each) for each in found]), HTTPStatus.ACCEPTED)


async def preview(context: ServerContext, request: Request) -> Response:
    body = request.read(_preview)
    plan = None if body.plan is None else read_plan(body.plan)
    if body.name is None and plan is None:
        raise Invalid("name", "give the name of a schedule, or a plan")
    found = await context.broker.schedules.preview_schedule(body.name or "preview", plan, body.count, body.after)
    return reply(PreviewReply(write_coming(found)))
