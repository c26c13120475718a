"""Schedules, as they are said and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from qo.core.durations import duration
from qo.core.names import DEFAULT_KIND
from qo.core.outcome import JobState
from qo.core.schedule import (
    DEFAULT_CATCH_UP_LIMIT,
    DEFAULT_CATCH_UP_WINDOW,
    DEFAULT_TIMEZONE,
    CatchUp,
    Coming,
    FiredBy,
    Overlap,
    Plan,
    Run,
    RunInfo,
    ScheduleInfo,
    Skipped,
    Target,
)
from qo.core.slots import Fold, Gap, Spec
from qo.wire.content import Json, packed, unpacked
from qo.wire.kinds import Base64, Delay, Key, Name, Priority, Seconds


class SpecBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """When: a cron rule; or every so long (seconds, or text such as `1h30m`), counted from `anchor`; or once, `at`."""

    cron: str | None = None
    every: float | str | None = None
    anchor: datetime | None = None
    at: datetime | None = None


class TargetBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The message to push: a payload as JSON, or other bytes as base64; without either, `null`."""

    queue: Name
    kind: Name = DEFAULT_KIND
    payload: Json = UNSET
    payload_base64: Base64 | UnsetType = UNSET
    key: Key | None = None
    priority: Priority = 0
    headers: dict[str, str] | None = None
    ttl_seconds: Seconds | None = None


class PlanBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What is said of a schedule."""

    target: TargetBody
    specs: list[SpecBody]
    exclude: list[SpecBody] = []
    timezone: str = DEFAULT_TIMEZONE
    dst_gap: Gap = Gap.SHIFT
    dst_fold: Fold = Fold.FIRST
    jitter_seconds: Delay = 0.0
    catch_up: CatchUp = CatchUp.LAST
    catch_up_limit: int = DEFAULT_CATCH_UP_LIMIT
    catch_up_window_seconds: Delay = DEFAULT_CATCH_UP_WINDOW
    overlap: Overlap = Overlap.ALLOW
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    runs_limit: int | None = None
    failure_threshold: int | None = None
    tags: list[Name] = []


class NewScheduleBody(PlanBody, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A schedule to make."""

    name: Key


class PlanChangesBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What to change of a schedule; what is left out stays."""

    target: TargetBody | UnsetType = UNSET
    specs: list[SpecBody] | UnsetType = UNSET
    exclude: list[SpecBody] | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    dst_gap: Gap | UnsetType = UNSET
    dst_fold: Fold | UnsetType = UNSET
    jitter_seconds: Delay | UnsetType = UNSET
    catch_up: CatchUp | UnsetType = UNSET
    catch_up_limit: int | UnsetType = UNSET
    catch_up_window_seconds: Delay | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    starts_at: datetime | UnsetType | None = UNSET
    ends_at: datetime | UnsetType | None = UNSET
    runs_limit: int | UnsetType | None = UNSET
    failure_threshold: int | UnsetType | None = UNSET
    tags: list[Name] | UnsetType = UNSET


class ComingBody(msgspec.Struct):
    """A slot that is to come, and when it fires: its jitter later."""

    slot: datetime
    fires_at: datetime


class RunBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What became of a slot: its job and how that stands, or why it has none. `until`: all slots before that time."""

    slot: datetime
    at: datetime
    by: FiredBy
    job: str | None = None
    outcome: JobState | None = None
    skipped: Skipped | None = None
    until: datetime | None = None
    label: str | None = None
    error: str | None = None


class ScheduleBody(PlanBody, omit_defaults=True, kw_only=True):
    """A schedule: what was said of it, and how it stands. `rule` says in words when it fires."""

    name: str
    id: str
    version: int
    rule: str
    paused: bool
    note: str | None = None
    created_at: datetime
    changed_at: datetime
    coming: list[ComingBody]
    fired: int
    skipped: int
    failures: int
    runs: list[RunBody]
    error: str | None = None


class SchedulesReply(msgspec.Struct):
    schedules: list[ScheduleBody]


class SchedulesQuery(msgspec.Struct):
    """A page of schedules, by name; with a tag, those that have it."""

    after: str = ""
    limit: int = 100
    tag: str | None = None


class FireBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Why somebody fires it now, to be found in its runs."""

    label: Name | None = None


class BackfillBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """All slots from `begin` to before `end`."""

    begin: datetime
    end: datetime
    label: Name | None = None


class RunReply(msgspec.Struct):
    run: RunBody


class RunsReply(msgspec.Struct):
    runs: list[RunBody]


class PreviewBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Of a stored schedule, by its name; or of a plan, which is not stored. `name` is what `H` and jitter come from."""

    name: Key | None = None
    plan: PlanBody | None = None
    count: int = 5
    after: datetime | None = None


class PreviewReply(msgspec.Struct):
    coming: list[ComingBody]


class PauseBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which schedules: by name, or all that have a tag; and a note, such as why."""

    names: list[Key] | None = None
    tag: Name | None = None
    note: str | None = None


def read_plan(body: PlanBody) -> Plan:
    changes = _read_fields({name: getattr(body, name) for name in PlanBody.__struct_fields__})
    return Plan(**changes)


def read_changes(body: PlanChangesBody) -> dict[str, Any]:
    said = {name: getattr(body, name) for name in PlanChangesBody.__struct_fields__}
    return _read_fields({name: value for name, value in said.items() if value is not UNSET})


def _read_fields(said: dict[str, Any]) -> dict[str, Any]:
    """The fields of a plan, from those of its body."""
    if "target" in said:
        said["target"] = _read_target(said["target"])
    for name in ("specs", "exclude"):
        if name in said:
            said[name] = tuple(_read_spec(name, each) for each in said[name])
    if "tags" in said:
        said["tags"] = tuple(said["tags"])
    if "catch_up_window_seconds" in said:
        said["catch_up_window"] = said.pop("catch_up_window_seconds")
    return said


def _read_spec(field: str, body: SpecBody) -> Spec:
    every = None if body.every is None else duration(f"{field}.every", body.every).total_seconds()
    return Spec(cron=body.cron, every=every, anchor=body.anchor, at=body.at)


def _read_target(body: TargetBody) -> Target:
    given = body.payload is not UNSET or body.payload_base64 is not UNSET
    return Target(
        queue=body.queue,
        kind=body.kind,
        payload=unpacked("payload", body.payload, body.payload_base64) if given else b"null",
        key=body.key,
        priority=body.priority,
        headers=body.headers,
        ttl=body.ttl_seconds,
    )


def plan_fields(plan: Plan) -> dict[str, Any]:
    """The fields of a plan's body."""
    return change_fields(msgspec.structs.asdict(plan))


def change_fields(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a plan, as those of its body."""
    fields = dict(changes)
    if "target" in fields:
        fields["target"] = _write_target(fields["target"])
    for name in ("specs", "exclude"):
        if name in fields:
            fields[name] = [SpecBody(each.cron, each.every, each.anchor, each.at) for each in fields[name]]
    if "tags" in fields:
        fields["tags"] = list(fields["tags"])
    if "catch_up_window" in fields:
        fields["catch_up_window_seconds"] = fields.pop("catch_up_window")
    return fields


def _write_target(target: Target) -> TargetBody:
    payload, encoded = packed(target.payload, target.headers)
    return TargetBody(
        queue=target.queue,
        kind=target.kind,
        payload=payload,
        payload_base64=encoded,
        key=target.key,
        priority=target.priority,
        headers=None if target.headers is None else dict(target.headers),
        ttl_seconds=target.ttl,
    )


def write_plan(plan: Plan) -> PlanBody:
    return PlanBody(**plan_fields(plan))


def write_coming(coming: Sequence[Coming]) -> list[ComingBody]:
    return [ComingBody(each.slot, each.fires_at) for each in coming]


def read_coming(bodies: Sequence[ComingBody]) -> tuple[Coming, ...]:
    return tuple(Coming(each.slot, each.fires_at) for each in bodies)


def write_run(run: Run) -> RunBody:
    said = msgspec.structs.asdict(run)
    return RunBody(**{name: said[name] for name in RunBody.__struct_fields__ if name in said})


def read_run(body: RunBody) -> RunInfo:
    return RunInfo(**msgspec.structs.asdict(body))


def write_schedule(info: ScheduleInfo) -> ScheduleBody:
    said = {name: getattr(info, name) for name in ScheduleBody.__struct_fields__ if hasattr(info, name)}
    return ScheduleBody(
        **(
            said
            | plan_fields(info.plan)
            | {"coming": write_coming(info.coming), "runs": [write_run(each) for each in info.runs]}
        )
    )


def read_schedule(body: ScheduleBody) -> ScheduleInfo:
    plan = read_plan(PlanBody(**{name: getattr(body, name) for name in PlanBody.__struct_fields__}))
    said = {name: getattr(body, name) for name in ScheduleInfo.__struct_fields__ if hasattr(body, name)}
    return ScheduleInfo(
        **(said | {"plan": plan, "coming": read_coming(body.coming), "runs": tuple(map(read_run, body.runs))})
    )
