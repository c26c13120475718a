"""Schedules: what pushes when it is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack

from msgspec import UNSET

from qo.client.payload import RAW, encoded, marked
from qo.core.durations import Length, seconds_of
from qo.core.errors import Invalid
from qo.core.names import DEFAULT_KIND
from qo.core.schedule import Coming, Plan, Run, ScheduleInfo, Target
from qo.core.slots import Spec
from qo.core.verbs import Broker


class ScheduleOptions(TypedDict, total=False):
    """What more can be said of a schedule; see `Schedules.create`."""

    key: str | None
    priority: int
    headers: Mapping[str, str] | None
    ttl: Length | None
    specs: Sequence[Spec]
    exclude: Sequence[Spec]
    timezone: str
    dst_gap: str
    dst_fold: str
    jitter: Length
    catch_up: str
    catch_up_limit: int
    catch_up_window: Length
    overlap: str
    starts_at: datetime | None
    ends_at: datetime | None
    runs_limit: int | None
    failure_threshold: int | None
    tags: Sequence[str]


@dataclass(frozen=True, slots=True)
class Schedules:
    """Rules that push a message when they are due, whichever process of qo is there."""

    broker: Broker

    async def create(
        self,
        name: str,
        queue: str,
        payload: Any = None,
        *,
        kind: str = DEFAULT_KIND,
        cron: str | None = None,
        every: Length | None = None,
        anchor: datetime | None = None,
        at: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Make a schedule that pushes this payload to a queue. Raises `AlreadyExists` if there is one of that name.

        When: a cron rule (`"0 9 * * mon-fri"`, `"@hourly"`, `"H H * * *"`, or six fields with seconds first), every
        so long (counted from `anchor`), or once, at a time; or several such `specs`.

        exclude            specs whose slots do not fire
        timezone           the zone whose wall clock cron rules speak of; UTC unless it is named
        dst_gap, dst_fold  `shift` or `skip` times that the clock leaves out; `first`, `last` or `both` of those that it
                           shows twice
        jitter             each slot fires up to so much later
        catch_up           of slots that were missed, fire the `last`, `all` or none (`skip`); of all, the oldest
                           `catch_up_limit`, and none that is older than `catch_up_window`
        overlap            while an earlier job is not finished: `allow`, `skip`, `buffer_one`, `buffer_all` or
                           `cancel_other`
        starts_at, ends_at, runs_limit   when it begins and ends
        failure_threshold  so many failed jobs in a row pause it
        tags               to list and to pause schedules by
        """
        plan = make_plan(queue, payload, kind, cron=cron, every=every, anchor=anchor, at=at, **options)
        return await self.broker.schedules.create_schedule(name, plan)

    async def put(
        self,
        name: str,
        queue: str,
        payload: Any = None,
        *,
        kind: str = DEFAULT_KIND,
        cron: str | None = None,
        every: Length | None = None,
        anchor: datetime | None = None,
        at: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Make a schedule, or change one to what is said here: safe to repeat. Whether it is paused stays."""
        plan = make_plan(queue, payload, kind, cron=cron, every=every, anchor=anchor, at=at, **options)
        _, info = await self.broker.schedules.put_schedule(name, plan)
        return info

    async def change(
        self,
        name: str,
        *,
        queue: str | None = None,
        kind: str | None = None,
        payload: Any = UNSET,
        cron: str | None = None,
        every: Length | None = None,
        anchor: datetime | None = None,
        at: datetime | None = None,
        expected_version: int | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Change some of what was said of a schedule. A rule takes the place of all that it had.

        Raises `Conflict` if it does not have the expected version.
        """
        info = await self.get(name)
        said = {field: options.pop(field) for field in _OF_TARGET if field in options}  # type: ignore[misc]
        said |= {field: value for field, value in (("queue", queue), ("kind", kind)) if value is not None}
        if payload is not UNSET:
            said["payload"] = _encoded(payload)
        specs = _specs(cron, every, anchor, at, options.pop("specs", ()))
        changes = _plan_options(options)
        if specs:
            changes["specs"] = specs
        if said:
            changes["target"] = _changed_target(info.plan.target, said)
            expected_version = info.version if expected_version is None else expected_version
        return await self.broker.schedules.change_schedule(name, changes, expected_version)

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule, its next slots and its newest runs."""
        return await self.broker.schedules.schedule(name)

    async def list(self, *, tag: str | None = None, after: str = "", limit: int = 100) -> Sequence[ScheduleInfo]:
        """By name, each with its newest run."""
        return await self.broker.schedules.schedules(after, limit, tag)

    async def delete(self, name: str) -> bool:
        """Remove a schedule; jobs that it pushed stay. Whether there was one."""
        return await self.broker.schedules.delete_schedule(name)

    async def run(self, name: str, *, label: str | None = None) -> Run:
        """Push its message now, also if it is paused."""
        return await self.broker.schedules.run_schedule(name, label)

    async def backfill(self, name: str, begin: datetime, end: datetime, *, label: str | None = None) -> Sequence[Run]:
        """Push for all slots from `begin` to before `end`; at most a thousand."""
        return await self.broker.schedules.backfill_schedule(name, begin, end, label)

    async def pause(self, *names: str, tag: str | None = None, note: str | None = None) -> int:
        """Pause schedules, by name or by tag. How many changed."""
        return await self.broker.schedules.pause_schedules(list(names) or None, tag, True, note)

    async def resume(self, *names: str, tag: str | None = None, note: str | None = None) -> int:
        """Let schedules go on, with slots from now on. How many changed."""
        return await self.broker.schedules.pause_schedules(list(names) or None, tag, False, note)

    async def preview(
        self,
        name: str | None = None,
        *,
        count: int = 5,
        after: datetime | None = None,
        cron: str | None = None,
        every: Length | None = None,
        anchor: datetime | None = None,
        at: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Sequence[Coming]:
        """The next slots of a schedule that is stored; or, if a rule is given, of that rule. Nothing is stored."""
        plan = None
        if cron is not None or every is not None or at is not None or options.get("specs"):
            plan = make_plan("preview", None, DEFAULT_KIND, cron=cron, every=every, anchor=anchor, at=at, **options)
        elif name is None:
            raise Invalid("name", "give the name of a schedule, or a rule: cron, every, at or specs")
        elif options or anchor is not None:
            given = ", ".join(["anchor"] if anchor is not None else options)
            raise Invalid(given, "goes with a rule; of a stored schedule the slots are shown as they will fire")
        return await self.broker.schedules.preview_schedule(name or "preview", plan, count, after)


_OF_TARGET = ("key", "priority", "headers", "ttl")


def make_plan(
    queue: str,
    payload: Any,
    kind: str,
    *,
    cron: str | None,
    every: Length | None,
    anchor: datetime | None,
    at: datetime | None,
    **options: Unpack[ScheduleOptions],
) -> Plan:
    """A plan, from what a user says."""
    specs = _specs(cron, every, anchor, at, options.pop("specs", ()))
    said = {field: options.pop(field) for field in _OF_TARGET if field in options}  # type: ignore[misc]
    target = _changed_target(_target(queue, payload, kind), said)
    return Plan(target=target, specs=specs, **_plan_options(options))


def _specs(
    cron: str | None, every: Length | None, anchor: datetime | None, at: datetime | None, more: Sequence[Spec]
) -> tuple[Spec, ...]:
    specs = list(_read_specs("specs", more))
    if cron is not None:
        specs.append(Spec(cron=cron))
    if at is not None:
        specs.append(Spec(at=at))
    if every is not None:
        specs.append(Spec(every=every, anchor=anchor))
    elif anchor is not None:
        raise Invalid("anchor", "goes with every")
    return tuple(specs)


def _read_specs(name: str, specs: Any) -> tuple[Spec, ...]:
    if not isinstance(specs, Sequence) or not all(isinstance(each, Spec) for each in specs):
        raise Invalid(name, "must be a list of qo.Spec(…)")
    return tuple(specs)


def _read_tags(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise Invalid("tags", "must be a list of texts")
    return tuple(tags)


def _encoded(payload: Any) -> bytes:
    return marked(payload, None)[0] if isinstance(payload, RAW) else encoded("payload", payload)


def _target(queue: str, payload: Any, kind: str) -> Target:
    if isinstance(payload, RAW):
        data, headers = marked(payload, None)
        return Target(queue=queue, kind=kind, payload=data, headers=headers)
    return Target(queue=queue, kind=kind, payload=encoded("payload", payload))


def _changed_target(target: Target, said: Mapping[str, Any]) -> Target:
    fields = {name: getattr(target, name) for name in Target.__struct_fields__} | dict(said)
    if said.get("ttl") is not None:
        fields["ttl"] = seconds_of("ttl", said["ttl"])
    if target.headers and said.get("headers"):
        fields["headers"] = {**target.headers, **said["headers"]}
    return Target(**fields)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "jitter": lambda value: seconds_of("jitter", value),
    "catch_up_window": lambda value: seconds_of("catch_up_window", value),
    "exclude": lambda value: _read_specs("exclude", value),
    "tags": _read_tags,
}


def _plan_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a plan, from options."""
    read = {name: _READ.get(name, lambda value: value)(value) for name, value in options.items()}
    if "jitter" in read:
        read["jitter_seconds"] = read.pop("jitter")
    return read
