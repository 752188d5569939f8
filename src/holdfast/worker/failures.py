"""Exceptions → failures. What they say is hostile: texts are bounded, and printing may raise."""

from __future__ import annotations

import traceback
from types import TracebackType

from holdfast.core.checks import clean_failure
from holdfast.core.model import Failure
from holdfast.outcomes import Outcome

_FRAMES_MAX = 64
_OWN = ("holdfast.worker.", "importlib.")


def failure_of(error: BaseException) -> Failure:
    """Its type, what it says, and where it came from, without the frames of the worker itself."""
    trace = "" if isinstance(error, Outcome) and error.__cause__ is None else _trace(error)
    return clean_failure(Failure(type=_name(type(error)), message=_text(error), trace=trace))


def plain_failure(type_name: str, text: str) -> Failure:
    """Of something the worker found out itself, where no trace would help."""
    return clean_failure(Failure(type=type_name, message=text))


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__
    plain = module in ("builtins", "__main__") or module.startswith("holdfast.")
    return kind.__qualname__ if plain else f"{module}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 (whatever its __str__ does)
        return f"(its text cannot be shown: {type(another).__name__})"


def _trace(error: BaseException) -> str:
    try:
        told = traceback.TracebackException(
            type(error), error, _without_own(error.__traceback__), limit=-_FRAMES_MAX
        )
        return "".join(told.format())
    except Exception as another:  # noqa: BLE001 (whatever its __repr__ or __notes__ do)
        return f"(its trace cannot be shown: {type(another).__name__})"


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames at the top that are the worker's own; if there are no others, with."""
    at = trace
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith(_OWN):
        at = at.tb_next
    return at or trace
