"""For tests of programs that use Holdfast: the modes `inline`, `manual` and `fake`, an Amazon SQS
endpoint, a manual clock and a pytest plugin. The tests for authors of engines are in
`holdfast.conformance`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.modes import Fake, Inline, Manual, fake, inline, manual
    from holdfast.testing.sqs import sqs_client, sqs_server

__all__ = ["Fake", "Inline", "Manual", "fake", "inline", "manual", "sqs_client", "sqs_server"]

if "pytest" in sys.modules:
    # Registered before they are imported, so that their failed asserts show the values.
    sys.modules["pytest"].register_assert_rewrite(
        "holdfast.conformance.contract",
        "holdfast.conformance.random_histories",
        "holdfast.conformance.harness",
    )


def __getattr__(name: str) -> Any:
    # Imported on first use: every pytest run loads the plugin at its start.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "sqs" if name.startswith("sqs_") else "modes"
    return getattr(import_module(f"holdfast.testing.{module}"), name)
