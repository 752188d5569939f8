"""What `INSTALLED_APPS` takes, for the sake of the command `manage.py holdfast_worker`."""

from __future__ import annotations

from django.apps import AppConfig


class HoldfastConfig(AppConfig):  # type: ignore[misc]
    """It has no models: Holdfast keeps its own store."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "Holdfast"
