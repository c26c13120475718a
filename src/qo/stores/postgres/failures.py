"""PostgreSQL's errors, translated once; and which of them are worth another try."""

from __future__ import annotations

from enum import StrEnum

import asyncpg
from asyncpg import exceptions as pg

from qo.core.errors import Forbidden, Incompatible, Invalid, QoError, StoreFull, Unavailable

RETRIED = (
    pg.SerializationError,
    pg.DeadlockDetectedError,
    pg.LockNotAvailableError,
    pg.TooManyConnectionsError,
    pg.CannotConnectNowError,
    pg.QueryCanceledError,
    pg.ConfigurationLimitExceededError,
    pg.OutOfMemoryError,
)
"""The statement was undone by the server, or never ran: another try is safe."""

DEMOTED = (pg.ReadOnlySQLTransactionError,)
"""The server cannot be written, as after a failover: another may have taken its place. Another try is safe."""


class Signal(StrEnum):
    """What functions of ours raise, as SQLSTATE. `DETAIL` names the queue or the message that it is about."""

    NEW_QUEUE = "QO001"
    """A queue is to be created first, as the caller says."""
    LAPSE = "QO002"
    """How a message stands is known only after a lease that has run out was given back."""
    SEAL = "QO003"
    """Payloads for this queue are to be sealed first."""
    FULL = "QO004"
    """The queue is at its max_size."""
    ISOLATION = "QO005"
    """The transaction is not READ COMMITTED."""


SIGNALS = frozenset(Signal)


def signal_of(error: asyncpg.PostgresError) -> tuple[Signal, str] | None:
    """The signal that an error is, and its detail; None: it is another error."""
    code = getattr(error, "sqlstate", None)
    return (Signal(code), getattr(error, "detail", None) or "") if code in SIGNALS else None


LOST = (
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ConnectionError,
    OSError,
    TimeoutError,
)
"""The connection failed. If a statement was under way, nobody knows whether it was committed."""


def translated(error: BaseException) -> BaseException:  # noqa: C901 - one case per error
    """The leaf of qo's error tree that says who must act. What is not PostgreSQL's passes as it is."""
    match error:
        case QoError():
            return error
        case pg.DiskFullError() | pg.ProgramLimitExceededError():
            return StoreFull(f"the database has no room left ({error}); nothing was written")
        case pg.InvalidPasswordError() | pg.InvalidAuthorizationSpecificationError():
            return Forbidden(f"the database refused the login ({error})")
        case pg.ReadOnlySQLTransactionError():
            return Unavailable(f"the database cannot be written now ({error}): a failover? Try again")
        case pg.InsufficientPrivilegeError():
            return Forbidden(f"the database does not permit this ({error})")
        case pg.InvalidCatalogNameError():
            return Unavailable(f"{error}; create it first")
        case pg.UndefinedTableError() | pg.UndefinedFunctionError() | pg.InvalidSchemaNameError():
            return Incompatible(f"the schema is not what this qo expects ({error}); run `qo migrate`")
        case pg.CharacterNotInRepertoireError() | pg.UntranslatableCharacterError():
            return Invalid("text", f"contains a character that PostgreSQL cannot keep ({error})")
        case asyncpg.PostgresError():
            return Unavailable(f"the database failed: {type(error).__name__}: {error}")
        case TimeoutError():
            return Unavailable("the database did not answer in time; try again")
        case asyncpg.InterfaceError() | asyncpg.InternalClientError() | OSError():
            return Unavailable(f"the database cannot be reached ({str(error) or type(error).__name__}); try again")
        case _:
            return error
