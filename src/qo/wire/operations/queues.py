"""Queues: settings, pause, purge, and looking at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from qo.core.outcome import Depth, QueueOverview
from qo.core.queue import QueueSettings
from qo.wire.operation import FOLLOW, LOOK, PLAIN, Codec, Operation, Verb
from qo.wire.queues import (
    CountReply,
    DeletedReply,
    GroupQuery,
    HealthReply,
    LanesQuery,
    LanesReply,
    PausedReply,
    QueueBody,
    QueuesQuery,
    QueuesReply,
    Settings,
    SettingsReply,
    plain_changes,
    plain_settings,
    read_health,
    read_queue,
    read_settings,
    write_health,
    write_queue,
)


class OverviewReply(msgspec.Struct):
    queues: list[QueueOverview]


DELETED = Codec(lambda reply: reply.deleted, DeletedReply)
COUNT = Codec(lambda reply: reply.count, CountReply)


def _write_changes(changes: Mapping[str, Any]) -> Settings:
    QueueSettings().changed(changes)  # what JSON cannot say is refused here
    return plain_changes(changes)


QUEUES = Operation(
    method="GET",
    path="/v1/queues",
    name="queues",
    summary="The queues there are, by name.",
    scopes=LOOK,
    decides=True,
    query=QueuesQuery,
    replies={200: QueuesReply},
    verb=Verb(
        "inspect",
        "queues",
        Codec(
            lambda reply: [read_queue(each) for each in reply.queues],
            lambda found: QueuesReply([write_queue(each) for each in found]),
        ),
    ),
)
OVERVIEW = Operation(
    method="GET",
    path="/v1/overview",
    name="overview",
    summary="How queues stand, by name: waiting, running, failed, the oldest that waits, and rates of the last minute.",
    scopes=LOOK,
    decides=True,
    query=QueuesQuery,
    replies={200: OverviewReply},
    verb=Verb("inspect", "overview", Codec(lambda reply: reply.queues, lambda found: OverviewReply(list(found)))),
)
QUEUE = Operation(
    method="GET",
    path="/v1/queues/{queue}",
    name="queue",
    summary="One queue and all of its settings.",
    scopes=FOLLOW,
    replies={200: QueueBody},
    verb=Verb("inspect", "queue", Codec(read_queue, write_queue)),
)
CONFIGURE = Operation(
    method="PATCH",
    path="/v1/queues/{queue}",
    name="configure",
    summary="Create a queue if need be and change some of its settings; durations in seconds. Answers all of them.",
    body=Settings,
    replies={200: SettingsReply},
    verb=Verb(
        "admin",
        "configure",
        Codec(lambda reply: read_settings(reply.settings), lambda settings: SettingsReply(plain_settings(settings))),
        body="changes",
    ),
    arguments={"changes": Codec(PLAIN.read, _write_changes)},
)
DELETE_QUEUE = Operation(
    method="DELETE",
    path="/v1/queues/{queue}",
    name="delete_queue",
    summary="Remove a queue and all that is in it.",
    replies={200: DeletedReply},
    verb=Verb("admin", "delete_queue", DELETED),
)
PAUSE = Operation(
    method="POST",
    path="/v1/queues/{queue}/pause",
    name="pause",
    summary="Stop claims. Pushes and settles go on.",
    replies={200: PausedReply},
    verb=Verb("admin", "pause", Codec(lambda _: None, lambda _: PausedReply(True)), fixed={"paused": True}),
)
RESUME = Operation(
    method="POST",
    path="/v1/queues/{queue}/resume",
    name="resume",
    summary="Let claims go on.",
    replies={200: PausedReply},
    verb=Verb("admin", "pause", Codec(lambda _: None, lambda _: PausedReply(False)), fixed={"paused": False}),
)
PURGE = Operation(
    method="POST",
    path="/v1/queues/{queue}/purge",
    name="purge",
    summary="Remove every message, for every group. How many there were.",
    replies={200: CountReply},
    verb=Verb("admin", "purge", COUNT),
)
DEPTH = Operation(
    method="GET",
    path="/v1/queues/{queue}/depth",
    name="depth",
    summary="How much of a queue is still ahead of a group.",
    scopes=FOLLOW,
    query=GroupQuery,
    replies={200: Depth},
    verb=Verb("inspect", "depth"),
)
LANES = Operation(
    method="GET",
    path="/v1/queues/{queue}/lanes",
    name="lanes",
    summary="The lanes of a queue, and where a group stands in them.",
    scopes=LOOK,
    query=LanesQuery,
    replies={200: LanesReply},
    verb=Verb("inspect", "lanes", Codec(lambda reply: reply.lanes, lambda found: LanesReply(list(found)))),
)
HEALTH = Operation(
    method="GET",
    path="/v1/health",
    name="store_health",
    summary="What the store says about itself.",
    replies={200: HealthReply},
    verb=Verb("inspect", "health", Codec(read_health, write_health)),
)
