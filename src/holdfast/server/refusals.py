"""What the server refuses by itself, before anybody's job is touched; nothing was changed."""

from __future__ import annotations

from holdfast.errors import EngineUnavailable, UsageError


class BadRequest(UsageError):
    """The request cannot be read: the text says what is wrong with it."""

    code = "bad_request"


class InvalidRequest(UsageError):
    """A value of the request is not as /v1/openapi.json describes it: the text says which."""

    code = "invalid_request"


class TooLarge(UsageError):
    """The request is larger than the server takes: send less at a time."""

    code = "too_large"


class WrongContent(UsageError):
    """The body is of a kind or in an encoding that is not read here: the text names the right."""

    code = "wrong_content"


class UnknownPath(UsageError):
    """There is nothing at this path: see /v1/openapi.json."""

    code = "unknown_path"


class WrongMethod(UsageError):
    """The path is right and the method is not: `Allow` lists those that are."""

    code = "wrong_method"

    def __init__(self, text: str, *, allowed: tuple[str, ...]) -> None:
        super().__init__(text)
        self.allowed = allowed


class SlowRequest(UsageError):
    """The request did not arrive in time: send it again, faster or in parts."""

    code = "slow_request"


class TimedOut(EngineUnavailable):
    """It took longer than a request may and was given up, with nothing changed: ask for less."""

    code = "timed_out"


class Stopping(EngineUnavailable):
    """The server is about to end: try again, there or at another."""

    code = "stopping"


class ClientLeft(Exception):
    """Whoever asked has gone; nobody hears the answer."""
