"""`holdfast backup`: a copy of the queue file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.output import COMMON, Common, print_json
from holdfast.cli.running import running
from holdfast.core.text import printable


async def backup(
    file: Annotated[Path, Parameter(help="A new file; nothing is overwritten.")],
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Copy the queue file while work goes on."""
    async with running(common) as app:
        await app.backup(file)
    if common.json:
        print_json({"backup": str(file)})
    else:
        print(f"copied to {printable(str(file), one_line=True)}")
