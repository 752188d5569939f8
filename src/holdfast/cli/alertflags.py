"""The flags of a server that tells its alerts to somebody."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.alerts.webhook import Hook
from holdfast.errors import UsageError


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class AlertFlags:
    """Where alerts are sent."""

    alert_webhook: Annotated[
        str | None, Parameter(help="Send alerts there, signed: https://example.org/alerts.")
    ] = None
    alert_webhook_secrets: Annotated[
        Path | None, Parameter(help="The file with what they are signed with, one secret a line.")
    ] = None
    alert_webhook_allow: Annotated[
        list[str] | None,
        Parameter(
            help="A network that is not public, and may be reached: 10.0.0.0/8.", negative=()
        ),
    ] = None
    alert_webhook_ca: Annotated[
        Path | None, Parameter(help="Whom to trust instead of the system's authorities.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """What they say as fields of `ServerSettings`; what is wrong is told at once."""
        if self.alert_webhook is None:
            if self != AlertFlags():
                raise UsageError("alerts are sent nowhere: say --alert-webhook as well")
            return {}
        secrets, ca = self.alert_webhook_secrets, self.alert_webhook_ca
        said: dict[str, Any] = {
            "alert_webhook_secrets": None if secrets is None else str(secrets.absolute()),
            "alert_webhook_allow": tuple(self.alert_webhook_allow or ()),
            "alert_webhook_ca": None if ca is None else str(ca.absolute()),
        }
        Hook(
            self.alert_webhook,
            secrets_file=said["alert_webhook_secrets"],
            allow=said["alert_webhook_allow"],
            ca_file=said["alert_webhook_ca"],
        )
        return {"alert_webhook": self.alert_webhook, **said}
