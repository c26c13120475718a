"""Groups: create, seek, delete, list."""

from __future__ import annotations

from qo.wire.operation import CONSUME, LOOK, Codec, Operation, Verb
from qo.wire.operations.queues import COUNT, DELETED
from qo.wire.queues import (
    CountReply,
    CreatedReply,
    DeletedReply,
    FilterGroupBody,
    GroupsReply,
    GroupStartBody,
    SeekBody,
    read_group,
    read_target,
    write_group,
    write_target,
)

GROUPS = Operation(
    method="GET",
    path="/v1/queues/{queue}/groups",
    name="groups",
    summary="The groups of a queue, and how much is ahead of each.",
    scopes=LOOK,
    replies={200: GroupsReply},
    verb=Verb(
        "inspect",
        "groups",
        Codec(
            lambda reply: [read_group(each) for each in reply.groups],
            lambda found: GroupsReply([write_group(each) for each in found]),
        ),
    ),
)
CREATE_GROUP = Operation(
    method="PUT",
    path="/v1/queues/{queue}/groups/{group}",
    name="create_group",
    summary="Register a group; the first registration wins.",
    scopes=CONSUME,
    body=GroupStartBody,
    body_needed=False,
    replies={200: CreatedReply},
)
CREATE_GROUP_ANYWHERE = Operation(
    method="PUT",
    path="/v1/groups/{group}",
    name="create_group_anywhere",
    summary="Register a group in several queues, or in all of a namespace or task, those that appear later too.",
    scopes=CONSUME,
    decides=True,
    body=FilterGroupBody,
    replies={200: CreatedReply},
)
DELETE_GROUP = Operation(
    method="DELETE",
    path="/v1/queues/{queue}/groups/{group}",
    name="delete_group",
    summary="Remove a group with its progress.",
    replies={200: DeletedReply},
    verb=Verb("admin", "delete_group", DELETED),
)
SEEK = Operation(
    method="POST",
    path="/v1/queues/{queue}/groups/{group}/seek",
    name="seek",
    summary="Move a group; ends its leases and drops its retries. How many lanes were moved.",
    body=SeekBody,
    replies={200: CountReply},
    verb=Verb("admin", "seek", COUNT),
    arguments={"to": Codec(read_target, write_target)},
)
