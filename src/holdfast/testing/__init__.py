"""For tests of programs that use Holdfast: the modes `inline`, `manual` and `fake`, a manual clock
and a pytest plugin. The tests for authors of engines are in `holdfast.conformance`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.modes import Fake, Inline, Manual, fake, inline, manual

__all__ = ["Fake", "Inline", "Manual", "fake", "inline", "manual"]

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
    return getattr(import_module("holdfast.testing.modes"), name)
