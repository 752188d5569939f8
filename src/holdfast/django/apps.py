"""The entry for `INSTALLED_APPS`, which adds the command `manage.py holdfast_worker`."""

from __future__ import annotations

from django.apps import AppConfig


class HoldfastConfig(AppConfig):  # type: ignore[misc]
    """An app without models: Holdfast has its own store."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "Holdfast"
