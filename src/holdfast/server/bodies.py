"""What callers may say of a job."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core import limits
from holdfast.server.shapes import (
    Attempts,
    JobId,
    Json,
    Name,
    Pairs,
    Priority,
    QueueName,
    Seconds,
    TaskName,
)

Command = Annotated[str, Meta(min_length=1)] | Annotated[list[str], Meta(min_length=1)]


class JobBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What can be said of any job. These fields come behind those of what is made of it."""

    command: Command | None = None
    webhook: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    priority: Priority | None = None
    delay: Seconds | None = None
    expires: Seconds | None = None
    tenant: Name | None = None
    group: Name | None = None
    labels: Pairs | None = None
    headers: Pairs | None = None
    lease: Seconds | None = None
    timeout: Seconds | None = None
    max_attempts: Attempts | None = None
    max_retries: Attempts | None = None
    max_crashes: Annotated[int, Meta(ge=1, le=limits.ATTEMPTS_MAX)] | None = None
    backoff: Annotated[str, Meta(examples=["exponential(2s, max=10m)"])] | None = None
    content_type: Annotated[str, Meta(min_length=1, max_length=127)] | None = None


class NewJobBody(JobBody, forbid_unknown_fields=True):
    """A job is a task with a payload, a command, or a webhook with the body of its request as
    payload. What is null is as if left out. A job with a known id, or with a key that is still
    held, adds nothing."""

    task: TaskName | None = None
    payload: Json | UnsetType = UNSET
    id: JobId | None = None
    run_at: Annotated[datetime, Meta(tz=True)] | None = None
    key: Name | None = None
    key_window: Seconds | None = None
    key_policy: Literal["keep", "replace", "merge"] | None = None
    after: Annotated[list[JobId], Meta(max_length=limits.PARENTS_MAX)] | None = None
    after_on: Literal["success", "death", "either"] | None = None
    parent_death: Literal["cancel", "run", "hold"] | None = None


class AnyJobBody(NewJobBody, forbid_unknown_fields=True, kw_only=True):
    """As for one queue, but it says which, or `to` which worker it goes; with `reroute` to another
    one if that does not take it: any, or one with these labels."""

    queue: QueueName | None = None
    to: Name | None = None
    reroute: bool | Pairs | None = None
