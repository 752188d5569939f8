"""OpenTelemetry spans of an enqueue, a request and a run of a handler, and their export.

Spans hold names, ids and error types, never the content of a job or an error. Export follows
OpenTelemetry's standard variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import entry_points
from typing import Any, Protocol

from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.core import bounds
from holdfast.core.codec import TRACEPARENT, TRACESTATE
from holdfast.core.model import NewJob
from holdfast.errors import ConfigError

_EXPORTERS = "opentelemetry_traces_exporter"
_W3C = TraceContextTextMapPropagator()
_SCOPE = "holdfast"
_BYTES_SPARE = 2_048
"""A job close to the size limit gets no trace headers, so that they do not make it too large."""
_SYSTEM: dict[str, Any] = {"messaging.system": "holdfast"}


class TracedJob(Protocol):
    """A job that is about to run."""

    @property
    def id(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


def current_headers() -> dict[str, str]:
    """Headers of the current span; empty if there is none."""
    carried: dict[str, str] = {}
    _W3C.inject(carried)
    return carried


def with_current_trace(jobs: Sequence[NewJob]) -> list[NewJob]:
    """The jobs with the current trace in their headers, unless they have one already."""
    carried = current_headers()
    if not carried:
        return list(jobs)
    return [_carrying(job, carried) if _is_bare(job) else job for job in jobs]


@contextmanager
def enqueue_span(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """A producer span around an enqueue; yields the jobs with its trace. A job with a trace keeps
    it, and if all do there is no span."""
    bare = [job for job in jobs if _is_bare(job)]
    if not bare:
        yield list(jobs)
        return
    queues = {job.queue for job in bare}
    attributes = {**_SYSTEM, "messaging.operation.type": "send"}
    if len(queues) == 1:
        attributes["messaging.destination.name"] = bare[0].queue
    if len(bare) == 1:
        attributes["messaging.message.id"] = bare[0].id
        attributes["holdfast.task"] = bare[0].task
    else:
        attributes["messaging.batch.message_count"] = len(bare)
    name = f"enqueue {bare[0].queue}" if len(queues) == 1 else "enqueue"
    with _span(name, SpanKind.PRODUCER, attributes):
        yield with_current_trace(jobs)


@contextmanager
def request_span(method: str, route: str, headers: Mapping[str, str]) -> Iterator[None]:
    """A server span around a request, continuing the trace in its headers."""
    attributes = {"http.request.method": method, "http.route": route}
    context = _W3C.extract(headers, context=Context())
    with _span(f"{method} {route}", SpanKind.SERVER, attributes, context=context):
        yield


def set_response_status(status: int) -> None:
    """Set the status on the span of the current request."""
    span = trace.get_current_span()
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)


class RunSpan:
    """The span of a run. For one job it continues the job's trace; for several it links to each."""

    def __init__(self, task: str, jobs: Sequence[TracedJob]) -> None:
        contexts = [_W3C.extract(job.headers, context=Context()) for job in jobs]
        origins = [trace.get_current_span(each).get_span_context() for each in contexts]
        attributes: dict[str, Any] = {
            **_SYSTEM,
            "messaging.operation.type": "process",
            "messaging.destination.name": jobs[0].queue,
            "holdfast.task": task,
        }
        if len(jobs) == 1:
            attributes["messaging.message.id"] = jobs[0].id
            attributes["holdfast.attempt"] = jobs[0].attempt
        else:
            attributes["messaging.batch.message_count"] = len(jobs)
        self._span = trace.get_tracer(_SCOPE).start_span(
            f"run {task}",
            context=contexts[0] if len(jobs) == 1 else Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(each) for each in origins if each.is_valid],
        )

    def inside(self) -> AbstractContextManager[Span]:
        """Make the span current."""
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def failed(self, kind: str) -> None:
        """Mark the span as failed with this type of error."""
        _failed(self._span, kind)

    def end(self) -> None:
        self._span.end()


@contextmanager
def run_span(task: str, jobs: Sequence[TracedJob]) -> Iterator[RunSpan]:
    """A span around a run; an exception marks it as failed."""
    run = RunSpan(task, jobs)
    with run.inside():
        try:
            yield run
        except BaseException as error:
            run.failed(type(error).__name__)
            raise
        finally:
            run.end()


def _failed(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, kind)


@contextmanager
def _span(
    name: str,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    *,
    context: Context | None = None,
    links: Sequence[Link] = (),
) -> Iterator[Span]:
    tracer = trace.get_tracer(_SCOPE)
    with tracer.start_as_current_span(
        name,
        context=context,
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            _failed(span, getattr(error, "code", None) or type(error).__name__)
            raise


def _is_bare(job: NewJob) -> bool:
    return TRACEPARENT not in job.headers


def _carrying(job: NewJob, carried: Mapping[str, str]) -> NewJob:
    pairs = (*job.headers.items(), *job.labels.items())
    size = sum(len(name.encode()) + len(value.encode()) for name, value in pairs)
    if len(job.headers) + 2 > bounds.PAIRS_MAX or size + _BYTES_SPARE > bounds.EXTRA_BYTES_MAX:
        return job
    own = {name: value for name, value in job.headers.items() if name != TRACESTATE}
    return replace(job, headers={**own, **carried})


def set_up_export(service: str) -> None:
    """Install a tracer provider, unless the application in this process already has one."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "tracing needs the OpenTelemetry SDK: pip install 'holdfast[otel]'"
        ) from None
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "unknown")).startswith("unknown"):
        resource = resource.merge(Resource({SERVICE_NAME: service}))
    provider = TracerProvider(resource=resource)
    for exporter in _exporters():
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def flush_export() -> None:
    """Send the spans that are still in memory."""
    # Only providers of the SDK have this; the API's default has nothing to send.
    force_flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if force_flush is not None:
        force_flush(2_000)


def _exporters() -> list[Any]:
    names = (os.environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")
    return [_exporter(name.strip()) for name in names if name.strip() not in ("", "none")]


def _exporter(name: str) -> Any:
    if name == "otlp":
        # "otlp" itself is a package that only installs the two real exporters.
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", ""
        )
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    found = list(entry_points(group=_EXPORTERS, name=name))
    if not found:
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: exporter {name[:80]!r} is not installed: pip install"
            " 'holdfast[otel]' provides console, and otlp over HTTP"
        )
    return found[0].load()()
