"""Translates errors of SQLite and the file system into `holdfast.errors`; no other error
escapes.
"""

from __future__ import annotations

import errno
from typing import Final

import apsw
import msgspec

from holdfast.errors import EngineError, EngineUnavailable, OutcomeUnknown, StorageFull


class FilesChanged(EngineUnavailable):
    """A file of the store was removed or replaced while in use, and nothing was changed."""


_UNREADABLE = (UnicodeDecodeError, msgspec.MsgspecError)
"""Raised when a damaged row is decoded."""

Trouble: Final = (apsw.Error, OSError, *_UNREADABLE)
"""A fault of the store. Any other exception is a programming error and passes unchanged."""

_DAMAGED = (apsw.CorruptError, apsw.NotADBError, *_UNREADABLE)


def is_full(error: BaseException) -> bool:
    """True if the disk or a quota is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, apsw.FullError)


def is_harmless(error: BaseException) -> bool:
    """True if the connection can still be used: it timed out on a lock or found no space."""
    return is_full(error) or isinstance(error, apsw.BusyError | apsw.LockedError)


def before_commit(error: BaseException) -> EngineError:
    """The error to raise when the transaction was not committed: nothing was changed."""
    if is_full(error):
        return StorageFull(f"the disk is full ({error}): free some space; nothing was changed")
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return EngineUnavailable(
            f"{error.filename or 'a file of the store'} cannot be opened ({error.strerror}): run as"
            " the user who owns the store, or name another store; nothing was changed"
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
        return EngineUnavailable(
            f"this user may only read the database ({error}): run as the user who owns it;"
            " nothing was changed"
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return EngineUnavailable(
            f"another program holds the database's write lock ({error}): end its transaction"
        )
    if isinstance(error, _DAMAGED):
        return EngineUnavailable(
            f"the database file is damaged ({error}): stop its users and restore a backup"
        )
    return EngineUnavailable(f"SQLite failed ({_name(error)}): nothing was changed")


def at_commit(error: BaseException) -> EngineError:
    """The error to raise when COMMIT failed: after an I/O error the change may still be there."""
    if is_harmless(error):
        return before_commit(error)
    return OutcomeUnknown(
        f"SQLite could not say whether the change was made ({_name(error)}): repeat the call"
    )


def _name(error: BaseException) -> str:
    code = getattr(error, "extendedresult", None)
    known = apsw.mapping_extended_result_codes | apsw.mapping_result_codes
    name = known.get(code, type(error).__name__) if code else type(error).__name__
    return f"{name}: {error}"
