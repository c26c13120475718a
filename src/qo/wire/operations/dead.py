"""Dead letters: list, retry, purge."""

from __future__ import annotations

from qo.core.message import checked_id, id_text
from qo.wire.jobs import DeadQuery, DeadReply, IdsReply, LettersBody, read_dead, write_dead
from qo.wire.operation import CONSUME, LOOK, Codec, Operation, Verb, page_id
from qo.wire.operations.queues import COUNT
from qo.wire.queues import CountReply

DEAD = Operation(
    method="GET",
    path="/v1/queues/{queue}/dead",
    name="dead",
    summary="Dead letters, oldest first.",
    scopes=LOOK,
    query=DeadQuery,
    replies={200: DeadReply},
    verb=Verb(
        "inspect",
        "dead",
        Codec(
            lambda reply: [read_dead(each) for each in reply.dead],
            lambda found: DeadReply([write_dead(each) for each in found]),
        ),
    ),
    arguments={"after": page_id("after")},
)
RETRY_DEAD = Operation(
    method="POST",
    path="/v1/queues/{queue}/dead/retry",
    name="retry_dead",
    summary="Push dead letters again, addressed to their group. Their new ids.",
    scopes=CONSUME,
    body=LettersBody,
    body_needed=False,
    replies={200: IdsReply},
    verb=Verb(
        "admin",
        "retry_dead",
        Codec(
            lambda reply: [checked_id("ids", each) for each in reply.ids],
            lambda ids: IdsReply([id_text(each) for each in ids]),
        ),
    ),
)
PURGE_DEAD = Operation(
    method="POST",
    path="/v1/queues/{queue}/dead/purge",
    name="purge_dead",
    summary="Remove dead letters. How many there were.",
    body=LettersBody,
    body_needed=False,
    replies={200: CountReply},
    verb=Verb("admin", "purge_dead", COUNT),
)
