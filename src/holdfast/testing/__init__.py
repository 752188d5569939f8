"""For tests of Holdfast, of programs that use it, and of engines that others write.

Start with `contract` (what every engine must do) and `machine` (random histories of any engine
against the reference). Nothing else in the package imports this.
"""

import sys

if "pytest" in sys.modules:
    # Before they are imported, so that a failed assert of theirs shows its values.
    sys.modules["pytest"].register_assert_rewrite(
        "holdfast.testing.contract", "holdfast.testing.machine", "holdfast.testing.twin"
    )
