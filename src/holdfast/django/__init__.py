"""Holdfast behind Django's tasks: "BACKEND": "holdfast.django.HoldfastBackend" in `TASKS`.

`app` is what a worker runs: `holdfast worker run holdfast.django:app`. Nothing of Django is
imported before one of them is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.django.backend import HoldfastBackend

    app: Holdfast

__all__ = ["HoldfastBackend", "app"]


def __getattr__(name: str) -> Any:
    if name == "HoldfastBackend":
        from holdfast.django.backend import HoldfastBackend

        return HoldfastBackend
    if name == "app":
        from holdfast.django.serving import application

        return application()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
