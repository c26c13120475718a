"""Queues and groups: what is listed, and what is arranged."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from qo.core.errors import Invalid
from qo.core.lane import Start
from qo.core.names import DEFAULT_GROUP
from qo.core.outcome import GroupInfo, Health, LaneInfo, QueueInfo
from qo.core.queue import QueueSettings, plain_value
from qo.wire.claims import read_start_text, write_start
from qo.wire.kinds import Key, Name, Number
from qo.wire.pages import Page

SETTINGS = "QueueSettings"
Settings = Annotated[dict[str, Any], msgspec.Meta(extra_json_schema={"$ref": f"#/components/schemas/{SETTINGS}"})]
"""Settings of a queue by name, durations in seconds."""


def _described(settings: type) -> type[msgspec.Struct]:
    """Settings as the wire has them, for documents: each may be absent, and durations are seconds."""
    hints = typing.get_type_hints(settings)
    fields = [(each.name, _on_the_wire(hints[each.name]) | UnsetType, UNSET) for each in dataclasses.fields(settings)]
    return msgspec.defstruct(settings.__name__, fields)


def _on_the_wire(kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        return functools.reduce(operator.or_, map(_on_the_wire, typing.get_args(kind)))
    if dataclasses.is_dataclass(kind):
        return _described(typing.cast("type", kind))
    return float if kind is timedelta else dict[str, Any] if typing.get_origin(kind) is Mapping else kind


SettingsBody = _described(QueueSettings)


class QueuesQuery(Page, forbid_unknown_fields=True):
    after: str = ""


class GroupQuery(msgspec.Struct, forbid_unknown_fields=True):
    group: str = DEFAULT_GROUP


class LanesQuery(Page, forbid_unknown_fields=True):
    group: str = DEFAULT_GROUP
    after: Number = 0


class QueueBody(msgspec.Struct, kw_only=True):
    name: str
    namespace: str
    task: str
    settings: Settings
    paused: bool
    created_at: datetime


class QueuesReply(msgspec.Struct):
    queues: list[QueueBody]


class SettingsReply(msgspec.Struct):
    settings: Settings


class GroupBody(msgspec.Struct, kw_only=True):
    name: str
    start: str
    created_at: datetime
    claimed_at: datetime | None
    lag: int


class GroupsReply(msgspec.Struct):
    groups: list[GroupBody]


class LanesReply(msgspec.Struct):
    lanes: list[LaneInfo]


class CountReply(msgspec.Struct):
    count: int


class PausedReply(msgspec.Struct):
    paused: bool


class DeletedReply(msgspec.Struct):
    deleted: bool


class CreatedReply(msgspec.Struct):
    created: bool


class GroupStartBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where the group begins: "all", "new" or a time."""

    start: str = "all"


class FilterGroupBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A group in these queues, or in all queues of a namespace or task, those that appear later too."""

    start: str = "all"
    queues: list[Name] = []
    namespace: str | None = None
    task: str | None = None


class SeekBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Move to "all" (the start), "new" (the end), a time, or an offset; in one key's lane, or in all."""

    to: str | Number
    key: Key | None = None


class HealthReply(msgspec.Struct, kw_only=True):
    engine: str
    version: str
    schema: int
    details: dict[str, str]
    problems: list[str]


def plain_settings(settings: QueueSettings) -> Settings:
    """All settings as JSON says them: durations in seconds."""
    return plain_settings_part(settings)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    return _plain(value) if isinstance(value, dict) else plain_value(value)


def plain_changes(changes: Mapping[str, Any]) -> Settings:
    """Changes as a caller writes them, as JSON says them."""
    return {
        name: plain_settings_part(value) if dataclasses.is_dataclass(value) else _plain_value(value)
        for name, value in changes.items()
    }


def plain_settings_part(value: Any) -> dict[str, Any]:
    return _plain(dataclasses.asdict(value))


def read_settings(settings: Settings) -> QueueSettings:
    return QueueSettings().changed(settings)


def write_queue(info: QueueInfo) -> QueueBody:
    return QueueBody(
        name=info.name,
        namespace=info.namespace,
        task=info.task,
        settings=plain_settings(info.settings),
        paused=info.paused,
        created_at=info.created_at,
    )


def read_queue(body: QueueBody) -> QueueInfo:
    return QueueInfo(
        name=body.name,
        namespace=body.namespace,
        task=body.task,
        settings=read_settings(body.settings),
        paused=body.paused,
        created_at=body.created_at,
    )


def write_group(info: GroupInfo) -> GroupBody:
    return GroupBody(
        name=info.name,
        start=write_start(info.start),
        created_at=info.created_at,
        claimed_at=info.claimed_at,
        lag=info.lag,
    )


def read_group(body: GroupBody) -> GroupInfo:
    return GroupInfo(
        name=body.name,
        start=read_start_text(body.start),
        created_at=body.created_at,
        claimed_at=body.claimed_at,
        lag=body.lag,
    )


def read_target(to: str | int) -> Start | int:
    """Where a seek goes."""
    if isinstance(to, int):
        return to
    try:
        return read_start_text(to)
    except Invalid as error:
        raise Invalid("to", error.problem) from None


def write_target(to: Start | int) -> str | int:
    return to if isinstance(to, int) else write_start(to)


def read_health(reply: HealthReply) -> Health:
    return Health(
        engine=reply.engine,
        version=reply.version,
        schema=reply.schema,
        details=reply.details,
        problems=tuple(reply.problems),
    )


def write_health(health: Health) -> HealthReply:
    return HealthReply(
        engine=health.engine,
        version=health.version,
        schema=health.schema,
        details=dict(health.details),
        problems=list(health.problems),
    )
