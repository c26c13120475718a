"""qo: a durable queue and the workers that empty it."""

from qo.client.client import Client
from qo.client.delivery import Delivery
from qo.client.enqueue import enqueue
from qo.client.job import JobHandle
from qo.client.middleware import PushMiddleware
from qo.client.outgoing import Message
from qo.client.queue import Queue
from qo.client.sync import SyncClient, SyncQueue
from qo.client.sync_shells import SyncDelivery, SyncJobHandle
from qo.connect import connect
from qo.core.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Forbidden,
    Incompatible,
    Invalid,
    JobCanceled,
    JobFailed,
    LeaseLost,
    NotFound,
    QoError,
    QueueFull,
    RolledBack,
    StoreFull,
    Throttled,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from qo.core.lease import Bury, Complete, Fail, Release
from qo.core.message import Dedupe, NewMessage
from qo.core.outcome import DeadLetter, Depth, Job, JobState
from qo.core.polling import PollingStrategy, monthly_cost
from qo.core.queue import History, QueueSettings
from qo.core.retry import RetryPolicy
from qo.core.slots import Spec
from qo.core.version import __version__ as __version__
from qo.worker.errors import PermanentError, RetryableError, Snooze
from qo.worker.middleware import RunMiddleware
from qo.worker.options import WorkerRunOptions
from qo.worker.tasks import Context
from qo.worker.worker import Worker

__all__ = [
    "AlreadyExists",
    "Bury",
    "Client",
    "Closed",
    "Complete",
    "Conflict",
    "Context",
    "DeadLetter",
    "Dedupe",
    "Delivery",
    "Depth",
    "Fail",
    "Forbidden",
    "History",
    "Incompatible",
    "Invalid",
    "Job",
    "JobCanceled",
    "JobFailed",
    "JobHandle",
    "JobState",
    "LeaseLost",
    "Message",
    "NewMessage",
    "NotFound",
    "PermanentError",
    "PollingStrategy",
    "PushMiddleware",
    "QoError",
    "Queue",
    "QueueFull",
    "QueueSettings",
    "Release",
    "RetryPolicy",
    "RetryableError",
    "RolledBack",
    "RunMiddleware",
    "Snooze",
    "Spec",
    "StoreFull",
    "SyncClient",
    "SyncDelivery",
    "SyncJobHandle",
    "SyncQueue",
    "Throttled",
    "TimedOut",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Worker",
    "WorkerRunOptions",
    "connect",
    "enqueue",
    "monthly_cost",
]
