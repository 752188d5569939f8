"""TRACE: OpenTelemetry spans from the producer through the server to the worker, where wanted.

It is off unless HOLDFAST_TRACING says yes, and then nothing of OpenTelemetry is imported and
nothing is in the way. The trace of a job travels in its headers, in the form that W3C gave it.
Programs of our own send their spans where the standard OTEL_… variables say; a program that embeds
Holdfast sets that up itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.engines.base import Engine

VARIABLE: Final = "HOLDFAST_TRACING"
PARENT: Final = "traceparent"
STATE: Final = "tracestate"
_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
_YES, _NO = ("yes", "true", "on", "1"), ("", "no", "false", "off", "0")


def is_on() -> bool:
    """Raises ConfigError where it cannot be."""
    given = os.environ.get(VARIABLE, "").strip().lower()
    if given in _NO:
        return False
    if given not in _YES:
        raise ConfigError(f"{VARIABLE} {given[:40]!r} is not yes or no")
    if find_spec("opentelemetry") is None:
        raise ConfigError(
            f"{VARIABLE} is on, and OpenTelemetry is missing: pip install 'holdfast[otel]'"
        )
    return True


def parent_of(headers: Mapping[str, str]) -> str | None:
    """The trace that a job, or a request, is part of."""
    found = headers.get(PARENT)
    return found if found is not None and _PARENT.match(found) else None


def outgoing(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request that a job makes: with the trace of its run, or else its own."""
    if is_on():
        from holdfast.tracing.spans import current

        return current()
    parent = parent_of(headers)
    return {} if parent is None else {PARENT: parent}


def begin(service: str) -> None:
    """For programs of our own: `service` is what they are called, unless a variable says."""
    if is_on():
        from holdfast.tracing.exporting import set_up

        set_up(service)


def end() -> None:
    """What was not sent yet is, in a process that ends without the interpreter's own end."""
    if is_on():
        from holdfast.tracing.exporting import flush

        flush()


def traced(engine: Engine) -> Engine:
    """The same engine, whose jobs carry their trace; itself while tracing is off."""
    if not is_on():
        return engine
    from holdfast.tracing.engine import Traced

    return cast("Engine", Traced(engine))


def traced_within(within: Any) -> Any:
    """The same for what enqueues inside the caller's own transaction."""
    if not is_on():
        return within
    from holdfast.tracing.engine import TracedWithin

    return TracedWithin(within)
