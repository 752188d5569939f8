"""For tests of Holdfast, of programs that use it, and of engines that others write.

Programs start with `inline`, `manual` and `fake`; engines with `contract` (what every engine must
do) and `machine` (random histories of any engine against the reference). Nothing else in the
package imports this, but chaos its private server.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.modes import Fake, Inline, Manual, fake, inline, manual

__all__ = ["Fake", "Inline", "Manual", "fake", "inline", "manual"]

if "pytest" in sys.modules:
    # Before they are imported, so that a failed assert of theirs shows its values.
    sys.modules["pytest"].register_assert_rewrite(
        "holdfast.testing.contract", "holdfast.testing.machine", "holdfast.testing.twin"
    )


def __getattr__(name: str) -> Any:
    # When first asked for: the plugin is loaded at the start of every pytest.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("holdfast.testing.modes"), name)
