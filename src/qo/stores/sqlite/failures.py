"""SQLite's errors, translated once."""

from __future__ import annotations

import errno

import apsw

from qo.core.errors import Forbidden, Incompatible, StoreFull, Unavailable

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No space, no quota, or more than a limit of the process allows (`ulimit -f`): SQLite calls the last an I/O error."""


def translated(error: BaseException, system_errno: int = 0) -> BaseException:
    """The leaf of qo's error tree that says who must act. What is not SQLite's passes as it is."""
    match error:
        case apsw.FullError():
            return StoreFull("the disk, or the file's allowed size, is full; nothing was written")
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return Forbidden("the file is read-only; qo must be able to write to it and to its folder")
        case apsw.BusyError() | apsw.LockedError():
            return Unavailable("another process held the file's lock for too long; try again")
        case apsw.NotADBError():
            return Incompatible("the file is not an SQLite database")
        case apsw.CorruptError():
            return Incompatible(f"the file is damaged ({error}); restore it from a backup")
        case apsw.CantOpenError():
            return Unavailable("the file cannot be opened; does its folder exist, and may it be written to?")
        case apsw.IOError() if system_errno in NO_ROOM:
            return StoreFull("the disk, or the size that this process may write, is full; nothing was written")
        case apsw.IOError():
            return Unavailable(f"the file cannot be read or written ({error})")
        case _:
            return error
