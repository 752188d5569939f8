"""`holdfast doctor`: what could be wrong, one line each, and what helps."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from holdfast.checkup import Finding, check
from holdfast.cli.exits import Exit
from holdfast.cli.output import COMMON, Common, print_json
from holdfast.cli.pages import program
from holdfast.cli.running import running
from holdfast.core.text import printable
from holdfast.errors import EngineError
from holdfast.views.status import checkup_view
from holdfast.views.values import plain


async def doctor(
    *,
    deep: Annotated[
        bool, Parameter(help="Read the whole store, and look for damage.", negative=())
    ] = False,
    common: Common = COMMON,
) -> int:
    """Look at everything that could be wrong, and say what helps."""
    try:
        async with running(common) as app:
            findings = await check(app.home.store, deep=deep)
    except EngineError as error:
        findings = [Finding(level="fail", name="store", text=str(error))]
    view = checkup_view(findings)
    if common.json:
        print_json(plain(view))
    else:
        for finding in findings:
            _print(finding)
    return Exit.DONE if view.ok else Exit.FAILED


def _print(finding: Finding) -> None:
    line = f"{finding.level:4}  {finding.name:9}  {finding.text}"
    print(printable(line, one_line=True))
    if finding.remedy:
        how = f": {program()} {finding.command}" if finding.command else ""
        print(printable(f"      {finding.remedy}{how}", one_line=True))
