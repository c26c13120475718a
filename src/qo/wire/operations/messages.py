"""Pushing."""

from __future__ import annotations

from qo.wire.messages import BatchBody, MessageBody, PushBody, PushedBody, PushReply
from qo.wire.operation import PRODUCE, Operation

PUSH = Operation(
    method="POST",
    path="/v1/queues/{queue}/messages",
    name="push",
    summary="Push one message, or many as `messages`. Answered when stored; the first push creates the queue.",
    scopes=PRODUCE,
    body=PushBody,
    replies={201: (PushedBody, PushReply), 200: PushReply},
)
PUSH_ANYWHERE = Operation(
    method="POST",
    path="/v1/messages",
    name="push_anywhere",
    summary="Push messages to several queues; each names its queue.",
    scopes=PRODUCE,
    decides=True,
    body=BatchBody,
    replies={201: PushReply, 200: PushReply},
)
SUBMIT = Operation(
    method="POST",
    path="/v1/queues/{queue}/jobs",
    name="submit",
    summary="Submit a job: push one message whose kind says which task handles it.",
    scopes=PRODUCE,
    body=MessageBody,
    replies={201: PushedBody},
)
