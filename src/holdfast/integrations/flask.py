"""Tasks that run in the application context of a Flask application."""

from __future__ import annotations

from collections.abc import Iterator

from flask import Flask

from holdfast.app.application import Holdfast
from holdfast.worker.child.context import Context


def install(app: Holdfast, flask_app: Flask) -> None:
    """Run each handler in an application context of its own, so that `current_app`, `g` and
    extensions work as in a request."""

    @app.middleware
    def in_application_context(ctx: Context) -> Iterator[None]:
        with flask_app.app_context():
            yield
