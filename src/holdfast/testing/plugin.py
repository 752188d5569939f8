"""The pytest plugin: fixtures for the test modes and for an SQS endpoint.

It imports nothing until one is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.app.application import Holdfast
    from holdfast.testing.modes import Fake, Inline, Manual


@pytest.fixture
def holdfast_app() -> Holdfast | None:
    """The application under test; override this fixture. None means all applications."""
    return None


@pytest.fixture
def holdfast_inline(holdfast_app: Holdfast | None) -> Iterator[Inline]:
    """Run each job at once, in the call that enqueues it."""
    from holdfast.testing.modes import inline

    with inline(*_given(holdfast_app)) as mode:
        yield mode


@pytest.fixture
def holdfast_manual(holdfast_app: Holdfast | None) -> Iterator[Manual]:
    """Run jobs only on `drain()`, and let time pass only on `advance()`."""
    from holdfast.testing.modes import manual

    with manual(*_given(holdfast_app)) as mode:
        yield mode


@pytest.fixture
def holdfast_fake(holdfast_app: Holdfast | None) -> Iterator[Fake]:
    """Run nothing; only record jobs, for `assert_enqueued` and `refute_enqueued`."""
    from holdfast.testing.modes import fake

    with fake(*_given(holdfast_app)) as mode:
        yield mode


@pytest.fixture
def holdfast_sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A boto3 client of an Amazon SQS endpoint in this process, which starts without queues. It is
    also the endpoint of the clients that the test creates without an `endpoint_url`."""
    from holdfast.testing.sqs import KEY, REGION, sqs_client

    with sqs_client() as client:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", client.meta.endpoint_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
        monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
        yield client


def _given(app: Holdfast | None) -> tuple[Holdfast, ...]:
    return () if app is None else (app,)
