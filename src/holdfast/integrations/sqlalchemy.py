"""A SQLAlchemy session for each attempt, committed when its handler returns.

To enqueue in the transaction of a session, use `task.within(session)`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from holdfast.app.application import Holdfast
from holdfast.errors import UsageError
from holdfast.worker.child.context import Context

_SESSION: ContextVar[Session | None] = ContextVar("holdfast_session", default=None)
_ASYNC_SESSION: ContextVar[AsyncSession | None] = ContextVar("holdfast_async_session", default=None)


def install(
    app: Holdfast,
    sessions: sessionmaker[Session] | None = None,
    async_sessions: async_sessionmaker[AsyncSession] | None = None,
) -> None:
    """Open a session of `sessions` around each plain handler, and of `async_sessions` around each
    async one. It is committed when the handler returns, and rolled back when it raises."""
    if sessions is not None:

        @app.middleware(only="sync")
        def open_session(ctx: Context) -> Iterator[None]:
            with sessions.begin() as session:
                token = _SESSION.set(session)
                try:
                    yield
                finally:
                    _SESSION.reset(token)

    if async_sessions is not None:

        @app.middleware(only="async")
        async def open_async_session(ctx: Context) -> AsyncIterator[None]:
            async with async_sessions.begin() as session:
                token = _ASYNC_SESSION.set(session)
                try:
                    yield
                finally:
                    _ASYNC_SESSION.reset(token)


def current_session() -> Session:
    """The session of the running plain handler."""
    session = _SESSION.get()
    if session is None:
        raise UsageError("no session is open here: call install(app, sessions) and run in a task")
    return session


def current_async_session() -> AsyncSession:
    """The session of the running async handler."""
    session = _ASYNC_SESSION.get()
    if session is None:
        raise UsageError(
            "no session is open here: call install(app, async_sessions=…) and run in an async task"
        )
    return session
