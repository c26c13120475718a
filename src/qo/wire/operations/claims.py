"""Claiming, settling, extending, units, and streams of deliveries."""

from __future__ import annotations

from qo.wire.claims import ClaimBody, ClaimQuery, ClaimReply, DeliveryBody, StreamQuery
from qo.wire.operation import ACT, CONSUME, Operation
from qo.wire.settling import ExtendBody, ExtendReply, SettleBody, SettleReply, UnitBody, UnitReply

EVENTS = "text/event-stream"

CLAIM = Operation(
    method="POST",
    path="/v1/queues/{queue}/claim",
    name="claim",
    summary="Take messages under a lease. With `wait`, held until there are some, or 204 after `timeout_ms`.",
    scopes=CONSUME,
    body=ClaimBody,
    body_needed=False,
    query=ClaimQuery,
    replies={200: ClaimReply, 204: None},
    repeatable=True,
)
CLAIM_ANYWHERE = Operation(
    method="POST",
    path="/v1/claim",
    name="claim_anywhere",
    summary="The same from several queues, or from all of a namespace or task.",
    scopes=CONSUME,
    decides=True,
    body=ClaimBody,
    replies={200: ClaimReply, 204: None},
    repeatable=True,
)
SETTLE = Operation(
    method="POST",
    path="/v1/settle",
    name="settle",
    summary="Say what became of claimed messages, and claim on in the same commit. Safe to repeat.",
    scopes=CONSUME,
    decides=True,
    body=SettleBody,
    replies={200: SettleReply},
    repeatable=True,
)
EXTEND = Operation(
    method="POST",
    path="/v1/extend",
    name="extend",
    summary="Hold leases for longer; learn which of their messages were canceled.",
    scopes=CONSUME,
    decides=True,
    body=ExtendBody,
    replies={200: ExtendReply},
    repeatable=True,
)
TRANSACT = Operation(
    method="POST",
    path="/v1/units",
    name="transact",
    summary="Settle, acknowledge by name and push together, or not at all (409).",
    scopes=ACT,
    decides=True,
    body=UnitBody,
    replies={200: UnitReply},
)
STREAM = Operation(
    method="GET",
    path="/v1/queues/{queue}/stream",
    name="stream",
    summary="Deliveries as Server-Sent Events, at most `window` unsettled at a time. POST /v1/settle settles them.",
    scopes=CONSUME,
    query=StreamQuery,
    replies={200: DeliveryBody},
    content=EVENTS,
    peeks=False,
)
