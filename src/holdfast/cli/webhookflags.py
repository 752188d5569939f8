"""The flags of a worker that sends webhooks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.breakers import to_breaker
from holdfast.errors import UsageError
from holdfast.worker.options import WorkerOptions
from holdfast.worker.webhook import webhook_setup


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class WebhookFlags:
    """Whether a worker sends webhooks, and where to."""

    webhooks: Annotated[
        bool, Parameter(help="Send webhook jobs: requests to where they say.", negative=())
    ] = False
    webhook_secrets: Annotated[
        Path | None, Parameter(help="The file with what they are signed with, one secret a line.")
    ] = None
    webhook_allow: Annotated[
        list[str] | None,
        Parameter(
            help="A network that is not public, and may be reached: 10.0.0.0/8.", negative=()
        ),
    ] = None
    webhook_ca: Annotated[
        Path | None, Parameter(help="Whom to trust instead of the system's authorities.")
    ] = None
    webhook_breaker: Annotated[
        str | None, Parameter(help='Leave a host alone after "5 failures, 30s"; or off.')
    ] = None

    def options(self) -> dict[str, Any]:
        """What they say as fields of `WorkerOptions`; what is wrong is told at once."""
        if not self.webhooks:
            if self != WebhookFlags():
                raise UsageError("this worker sends no webhooks: say --webhooks as well")
            return {}
        said: dict[str, Any] = {
            "webhooks": True,
            "webhook_secrets": _path(self.webhook_secrets),
            "webhook_allow": tuple(self.webhook_allow or ()),
            "webhook_ca": _path(self.webhook_ca),
        }
        if self.webhook_breaker is not None:
            off = self.webhook_breaker == "off"
            named = "--webhook-breaker"
            said["webhook_breaker"] = None if off else to_breaker(named, self.webhook_breaker)
        webhook_setup(WorkerOptions(url="", **said))
        return said


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
