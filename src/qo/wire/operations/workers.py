"""Workers: who registered, what nobody takes, and how many there should be."""

from __future__ import annotations

from qo.core.worker import Heartbeat
from qo.wire.operation import CONSUME, FOLLOW, LOOK, Operation
from qo.wire.queues import DeletedReply
from qo.wire.workers import KeptReply, ScalingQuery, ScalingReply, WorkersReply

WORKERS = Operation(
    method="GET",
    path="/v1/workers",
    name="workers",
    summary="The workers that are registered, and the kinds of messages that wait and that none of them takes.",
    scopes=LOOK,
    decides=True,
    replies={200: WorkersReply},
)
HEARTBEAT = Operation(
    method="PUT",
    path="/v1/workers/{id}",
    name="heartbeat",
    summary="Register a worker, or say how it is. While a claim of its waits here it need not be said again.",
    scopes=CONSUME,
    decides=True,
    body=Heartbeat,
    replies={200: KeptReply},
)
DEREGISTER = Operation(
    method="DELETE",
    path="/v1/workers/{id}",
    name="deregister",
    summary="A worker has stopped.",
    scopes=CONSUME,
    decides=True,
    replies={200: DeletedReply},
)
SCALING = Operation(
    method="GET",
    path="/v1/scaling",
    name="scaling",
    summary="What there is to do, and how many workers it asks for. With `wait`, held until there is some, or 204.",
    scopes=FOLLOW,
    decides=True,
    query=ScalingQuery,
    replies={200: ScalingReply, 204: None},
)
