"""The pytest plugin: a fixture for each test mode. It imports nothing until one is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.testing.modes import Fake, Inline, Manual


@pytest.fixture
def holdfast_app() -> Holdfast | None:
    """Override it to give the application under test; None means every one there is."""
    return None


@pytest.fixture
def holdfast_inline(holdfast_app: Holdfast | None) -> Iterator[Inline]:
    """Jobs run at once, where they are enqueued."""
    from holdfast.testing.modes import inline

    with inline(*_given(holdfast_app)) as mode:
        yield mode


@pytest.fixture
def holdfast_manual(holdfast_app: Holdfast | None) -> Iterator[Manual]:
    """Jobs wait for `drain()`, and time for `advance()`."""
    from holdfast.testing.modes import manual

    with manual(*_given(holdfast_app)) as mode:
        yield mode


@pytest.fixture
def holdfast_fake(holdfast_app: Holdfast | None) -> Iterator[Fake]:
    """Jobs are only kept, for `assert_enqueued` and `refute_enqueued`."""
    from holdfast.testing.modes import fake

    with fake(*_given(holdfast_app)) as mode:
        yield mode


def _given(app: Holdfast | None) -> tuple[Holdfast, ...]:
    return () if app is None else (app,)
