"""Schedules: rules that push when they are due."""

from __future__ import annotations

from qo.wire.operation import LOOK, Codec, Operation, Verb
from qo.wire.operations.queues import COUNT
from qo.wire.queues import CountReply
from qo.wire.schedules import (
    BackfillBody,
    FireBody,
    NewScheduleBody,
    PauseBody,
    PlanBody,
    PlanChangesBody,
    PreviewBody,
    PreviewReply,
    RunReply,
    RunsReply,
    ScheduleBody,
    SchedulesQuery,
    SchedulesReply,
    read_schedule,
    write_schedule,
)

SCHEDULES = Operation(
    method="GET",
    path="/v1/schedules",
    name="schedules",
    summary="The schedules there are, by name, each with its newest run; with `tag`, those that have it.",
    scopes=LOOK,
    query=SchedulesQuery,
    replies={200: SchedulesReply},
    verb=Verb(
        "schedules",
        "schedules",
        Codec(
            lambda reply: [read_schedule(each) for each in reply.schedules],
            lambda found: SchedulesReply([write_schedule(each) for each in found]),
        ),
    ),
)
CREATE_SCHEDULE = Operation(
    method="POST",
    path="/v1/schedules",
    name="create_schedule",
    summary="Make a schedule. 409 if there is one of that name.",
    body=NewScheduleBody,
    replies={201: ScheduleBody},
)
SCHEDULE = Operation(
    method="GET",
    path="/v1/schedules/{name}",
    name="schedule",
    summary="One schedule: its rule in words, the next slots, and its newest runs. Its version is the `ETag`.",
    scopes=LOOK,
    replies={200: ScheduleBody},
)
PUT_SCHEDULE = Operation(
    method="PUT",
    path="/v1/schedules/{name}",
    name="put_schedule",
    summary="Make a schedule, or change all that was said of it; whether it is paused stays.",
    body=PlanBody,
    replies={200: ScheduleBody, 201: ScheduleBody},
    repeatable=True,
)
CHANGE_SCHEDULE = Operation(
    method="PATCH",
    path="/v1/schedules/{name}",
    name="change_schedule",
    summary="Change some of what was said of it; with `If-Match`, only if it still has that version, else 409.",
    body=PlanChangesBody,
    replies={200: ScheduleBody},
    repeatable=True,
)
DELETE_SCHEDULE = Operation(
    method="DELETE",
    path="/v1/schedules/{name}",
    name="delete_schedule",
    summary="Remove it. Jobs that it pushed stay.",
    replies={204: None},
    repeatable=True,
)
FIRE_SCHEDULE = Operation(
    method="POST",
    path="/v1/schedules/{name}/runs",
    name="run_schedule",
    summary="Push its message now, also if it is paused.",
    body=FireBody,
    body_needed=False,
    replies={202: RunReply},
)
SCHEDULE_RUNS = Operation(
    method="GET",
    path="/v1/schedules/{name}/runs",
    name="schedule_runs",
    summary="What became of its newest fifty slots, newest first; also why slots were skipped.",
    scopes=LOOK,
    replies={200: RunsReply},
)
BACKFILL_SCHEDULE = Operation(
    method="POST",
    path="/v1/schedules/{name}/backfill",
    name="backfill_schedule",
    summary="Push for every slot of a range; at most 1000.",
    body=BackfillBody,
    replies={202: RunsReply},
)
PREVIEW_SCHEDULE = Operation(
    method="POST",
    path="/v1/previews",
    name="preview_schedule",
    summary="The next slots of a schedule, or of a plan that is not stored. Nothing is stored.",
    scopes=LOOK,
    body=PreviewBody,
    replies={200: PreviewReply},
    repeatable=True,
)
PAUSE_SCHEDULES = Operation(
    method="POST",
    path="/v1/schedules/pause",
    name="pause_schedules",
    summary="Pause schedules, by name or by tag. How many changed.",
    body=PauseBody,
    replies={200: CountReply},
    repeatable=True,
    verb=Verb("schedules", "pause_schedules", COUNT, fixed={"paused": True}),
)
RESUME_SCHEDULES = Operation(
    method="POST",
    path="/v1/schedules/resume",
    name="resume_schedules",
    summary="Let schedules go on, by name or by tag, with slots from now on. How many changed.",
    body=PauseBody,
    replies={200: CountReply},
    repeatable=True,
    verb=Verb("schedules", "pause_schedules", COUNT, fixed={"paused": False}),
)
