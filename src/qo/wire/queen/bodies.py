"""What Queen's clients send and read, with the keys as they spell them. Unknown fields are ignored."""

from __future__ import annotations

from typing import Any

import msgspec

from qo.core.lease import Bury, Complete, Fail, Release, Report
from qo.wire.queen.names import DEFAULT_PARTITION

NULL = msgspec.Raw(b"null")


class ConfigureBody(msgspec.Struct):
    queue: str
    namespace: str | msgspec.UnsetType | None = msgspec.UNSET
    task: str | msgspec.UnsetType | None = msgspec.UNSET
    options: dict[str, Any] | None = None
    mode: str | None = None


class PushItem(msgspec.Struct):
    queue: str
    partition: str | None = DEFAULT_PARTITION
    payload: msgspec.Raw = NULL
    transactionId: str | None = None
    traceId: str | None = None


class PushBody(msgspec.Struct):
    items: list[PushItem]


class PushResult(msgspec.Struct, kw_only=True):
    index: int
    message_id: str | None
    transaction_id: str | None
    queueName: str
    status: str
    error: str | msgspec.UnsetType = msgspec.UNSET


class PoppedMessage(msgspec.Struct, kw_only=True):
    id: str
    transactionId: str
    traceId: str | None
    data: msgspec.Raw
    producerSub: str | None
    createdAt: str | None
    queue: str
    partitionId: str
    partition: str
    leaseId: str
    consumerGroup: str
    deliveryAttempt: int
    offset: int


class PopReply(msgspec.Struct, kw_only=True):
    success: bool = True
    queue: str
    partition: str
    partitionId: str
    leaseId: str
    consumerGroup: str
    messages: list[PoppedMessage]
    partitionsClaimed: int


class AckItem(msgspec.Struct):
    transactionId: str | None = None
    partitionId: str | None = None
    status: str | None = None
    error: str | None = None
    consumerGroup: str | None = None
    leaseId: str | None = None

    def report(self) -> Report:
        match self.status:
            case None | "completed" | "success" | "acked" | "ok":
                return Complete()
            case "retry":
                return Release(after_done=True)
            case "dlq":
                return Bury(self.error or "")
            case _:
                return Fail(self.error or "")


class AckBatch(msgspec.Struct):
    acknowledgments: list[AckItem]
    consumerGroup: str | None = None


class AckResult(msgspec.Struct, kw_only=True):
    index: int
    transactionId: str | None
    success: bool
    error: str | None = None
    leaseReleased: bool = False
    dlq: bool = False
    noop: bool = False


class Operation(msgspec.Struct):
    type: str
    items: list[PushItem] | None = None
    transactionId: str | None = None
    partitionId: str | None = None
    status: str | None = None
    error: str | None = None
    consumerGroup: str | None = None
    leaseId: str | None = None

    def ack(self) -> AckItem:
        return AckItem(self.transactionId, self.partitionId, self.status, self.error, self.consumerGroup, self.leaseId)


class TransactionBody(msgspec.Struct):
    operations: list[Operation] = []
    requiredLeases: list[str] | None = None
    kv: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    timers: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class OperationResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: int
    type: str
    success: bool
    transactionId: str | None
    messageId: str | None = None
    queueName: str | None = None
    error: str | None = None
    dlq: bool = False


class TransactionReply(msgspec.Struct, kw_only=True):
    transactionId: str
    success: bool
    results: list[OperationResult]
    error: str | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET


class ExtendBody(msgspec.Struct):
    seconds: float | None = None


class TraceBody(msgspec.Struct):
    transactionId: str
    partitionId: str
    data: msgspec.Raw
    consumerGroup: str | None = None
    traceNames: list[str] | None = None
    eventType: str | None = None


class SeekBody(msgspec.Struct):
    toEnd: bool | None = None
    timestamp: str | None = None


class SubscriptionBody(msgspec.Struct):
    subscriptionTimestamp: str
