"""A backend for Django's tasks: "BACKEND": "holdfast.django.HoldfastBackend" in `TASKS`.

Workers run `app`: `holdfast worker run holdfast.django:app`. Django is imported only when one of
the two names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app.application import Holdfast
    from holdfast.django.backend import HoldfastBackend

    app: Holdfast

__all__ = ["HoldfastBackend", "app"]


def __getattr__(name: str) -> Any:
    if name == "HoldfastBackend":
        from holdfast.django.backend import HoldfastBackend

        return HoldfastBackend
    if name == "app":
        from holdfast.django.backend import application

        return application()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
