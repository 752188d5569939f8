"""OpenTelemetry spans from the producer through the server to the worker; off by default.

HOLDFAST_TRACING switches tracing on. While it is off, nothing of OpenTelemetry is imported. The
trace of a job travels in its headers, in the W3C format. The programs of Holdfast export their
spans as configured by the standard OTEL_… variables; a program that embeds Holdfast sets up its own
export.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from holdfast.core.codec import TRACEPARENT, trace_parent
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.engines.base import Engine

VARIABLE: Final = "HOLDFAST_TRACING"
_YES, _NO = ("yes", "true", "on", "1"), ("", "no", "false", "off", "0")


def is_on() -> bool:
    """True if tracing is switched on; ConfigError if the variable or the packages are wrong."""
    value = os.environ.get(VARIABLE, "").strip().lower()
    if value in _NO:
        return False
    if value not in _YES:
        raise ConfigError(f"{VARIABLE} {value[:40]!r}: expected yes or no")
    if find_spec("opentelemetry") is None:
        raise ConfigError(
            f"{VARIABLE} is on, but OpenTelemetry is not installed: pip install 'holdfast[otel]'"
        )
    return True


def outgoing_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Trace headers for a request made by a job: of the current span, or else of the job."""
    if is_on():
        from holdfast.tracing.spans import current_headers

        return current_headers()
    parent = trace_parent(headers)
    return {} if parent is None else {TRACEPARENT: parent}


def start_exporter(service: str) -> None:
    """Export the spans of this program; `service` is its name unless a variable names it."""
    if is_on():
        from holdfast.tracing.spans import set_up_export

        set_up_export(service)


def flush_exporter() -> None:
    """Send the remaining spans of a process that ends without running its exit handlers."""
    if is_on():
        from holdfast.tracing.spans import flush_export

        flush_export()


def traced(engine: Engine) -> Engine:
    """The engine, wrapped so that its jobs carry their trace; unchanged while tracing is off."""
    if not is_on():
        return engine
    from holdfast.tracing.engine import TracedEngine

    return TracedEngine(engine)
