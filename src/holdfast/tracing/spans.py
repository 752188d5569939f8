"""The spans: one for what is enqueued, one for a request, one for each run of a handler.

They hold names, ids and kinds of errors, and never what a job or an error says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.core import limits
from holdfast.core.model import NewJob
from holdfast.tracing import PARENT, STATE

_W3C = TraceContextTextMapPropagator()
_SCOPE = "holdfast"
_BYTES_SPARE = 2_048
"""A job that is almost as large as may be is left as it is: it is not refused for its trace."""


class Run(Protocol):
    """A job that is about to be run."""

    @property
    def id(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


def current() -> dict[str, str]:
    """The trace of whoever asks, as headers; none outside of any."""
    carried: dict[str, str] = {}
    _W3C.inject(carried)
    return carried


def carrying(jobs: Sequence[NewJob]) -> list[NewJob]:
    """With the trace of whoever asks, where they have none."""
    carried = current()
    if not carried:
        return list(jobs)
    return [_carrying(job, carried) if _is_bare(job) else job for job in jobs]


@contextmanager
def producing(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """The jobs as they are to be enqueued. Those that have a trace keep it, and if all of them do
    there is nothing to tell."""
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
        yield carrying(jobs)


@contextmanager
def serving(method: str, route: str, headers: Mapping[str, str]) -> Iterator[None]:
    """A request, as part of the trace that it names."""
    attributes = {"http.request.method": method, "http.route": route}
    context = _W3C.extract(headers, context=Context())
    with _span(f"{method} {route}", SpanKind.SERVER, attributes, context=context):
        yield


def answered(status: int) -> None:
    """To the request that is being served."""
    span = trace.get_current_span()
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)


class Consuming:
    """A run: of one job it goes on with the job's trace; of several it is linked to each."""

    def __init__(self, task: str, jobs: Sequence[Run]) -> None:
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
        """What is done meanwhile is part of it."""
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def failed(self, kind: str) -> None:
        """With this kind of error."""
        _failed(self._span, kind)

    def end(self) -> None:
        self._span.end()


@contextmanager
def consuming(task: str, jobs: Sequence[Run]) -> Iterator[Consuming]:
    run = Consuming(task, jobs)
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


_SYSTEM: dict[str, Any] = {"messaging.system": "holdfast"}


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
    return PARENT not in job.headers


def _carrying(job: NewJob, carried: Mapping[str, str]) -> NewJob:
    pairs = (*job.headers.items(), *job.labels.items())
    size = sum(len(name.encode()) + len(value.encode()) for name, value in pairs)
    if len(job.headers) + 2 > limits.PAIRS_MAX or size + _BYTES_SPARE > limits.EXTRA_BYTES_MAX:
        return job
    own = {name: value for name, value in job.headers.items() if name != STATE}
    return replace(job, headers={**own, **carried})
