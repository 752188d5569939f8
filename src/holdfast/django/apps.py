"""The entry for `INSTALLED_APPS`, which adds the command `manage.py holdfast_worker`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:

    class AppConfig:
        """Django ships no types."""

else:
    from django.apps import AppConfig


class HoldfastConfig(AppConfig):
    """An app without models: Holdfast has its own store."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "Holdfast"
