"""Errors of jobs in Sentry, with the job, its breadcrumbs and the trace of its producer.

Call `sentry_sdk.init` in the application's module, so that every worker does; then `install(app)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sentry_sdk

from holdfast.app.application import Holdfast
from holdfast.core.model import FailureKind, NewJob
from holdfast.worker.child.context import Context
from holdfast.worker.child.hooks import AttemptEnd
from holdfast.worker.outcomes import Cancelled, Release, Retry

_ASKED = (Retry, Release, Cancelled)
"""The handler asked for these itself: they are no errors."""


def install(app: Holdfast, *, every_attempt: bool = True) -> None:
    """Report failed attempts, each with a transaction around it. Without `every_attempt`, only the
    last attempt of a job is reported."""

    def is_reported(context: Context) -> bool:
        return every_attempt or context.last

    @app.on_enqueue
    def send_trace(job: NewJob) -> dict[str, str]:
        carried = {
            "sentry-trace": sentry_sdk.get_traceparent(),
            "baggage": sentry_sdk.get_baggage(),
        }
        return {name: value for name, value in carried.items() if value}

    @app.middleware
    def trace(ctx: Context) -> Iterator[None]:
        with _scope_of(ctx):
            transaction = sentry_sdk.continue_trace(
                dict(ctx.headers), op="queue.process", name=ctx.task, source="task"
            )
            with sentry_sdk.start_transaction(transaction):
                try:
                    yield
                except Exception as error:
                    if is_reported(ctx) and not isinstance(error, _ASKED):
                        sentry_sdk.capture_exception(error)
                    raise

    @app.on_failure
    def report_others(end: AttemptEnd) -> None:
        """Failures that the middleware cannot see: timeouts, and payloads and results that do not
        fit."""
        failure = end.failure
        if failure is None or not is_reported(end.context):
            return
        if end.error is None or failure.kind is FailureKind.TIMEOUT:
            with _scope_of(end.context):
                sentry_sdk.capture_message(f"{failure.type}: {failure.message}", level="error")


@contextmanager
def _scope_of(ctx: Context) -> Iterator[None]:
    """A scope of its own for this attempt: breadcrumbs of others, and tags, do not mix."""
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        scope.set_transaction_name(ctx.task, source="task")
        scope.set_tag("holdfast.task", ctx.task)
        scope.set_tag("holdfast.queue", ctx.queue)
        scope.set_context(
            "job",
            {
                "id": ctx.id,
                "task": ctx.task,
                "queue": ctx.queue,
                "attempt": ctx.attempt,
                "last": ctx.last,
                "tenant": ctx.tenant,
            },
        )
        yield
