"""Where the spans of our own programs go: as the standard variables of OpenTelemetry say."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Any

from opentelemetry import trace

from holdfast.errors import ConfigError

_GROUP = "opentelemetry_traces_exporter"


def set_up(service: str) -> None:
    """Once in a process, unless the application that it runs has done so already."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "tracing needs OpenTelemetry's SDK: pip install 'holdfast[otel]'"
        ) from None
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "unknown")).startswith("unknown"):
        resource = resource.merge(Resource({SERVICE_NAME: service}))
    provider = TracerProvider(resource=resource)
    for exporter in _exporters():
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def flush() -> None:
    flush_all = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush_all is not None:
        flush_all(2_000)


def _exporters() -> list[Any]:
    given = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    names = [name.strip() for name in given.split(",") if name.strip() not in ("", "none")]
    return [_exporter(name) for name in names]


def _exporter(name: str) -> Any:
    if name == "otlp":
        # The whole name is that of a package which only brings the others.
        wanted = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", ""
        )
        name = "otlp_proto_grpc" if wanted == "grpc" else "otlp_proto_http"
    found = list(entry_points(group=_GROUP, name=name))
    if not found:
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: no exporter {name[:80]!r} is installed: pip install "
            "'holdfast[otel]' has otlp by HTTP, and console"
        )
    return found[0].load()()
