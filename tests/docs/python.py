"""Generates docs/reference/python.md from the signatures and docstrings of the public names.

`python -m tests.docs.python` rewrites it. Sources are parsed, not imported: a parsed signature
reads as it was written, and docstrings of fields exist only in the source.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from holdfast import errors, testing
from holdfast.core import bounds
from holdfast.notation.job import FIELDS
from tests.sources import PACKAGE, ROOT

PAGE = ROOT / "docs" / "reference" / "python.md"

INTRO = """\
# Python API

All public names of `holdfast`, `holdfast.testing` and the integrations, with their signatures.
[Tasks](../tasks.md) explains how they work together. This page is generated from the docstrings.

A `Duration` is a number of seconds, a text such as `"250ms"`, `"30s"`, `"5m"` or `"2h"`, or a
`timedelta`. Values whose names end in `_ms` are milliseconds, and those that end in `_at` are
milliseconds since 1970. Every error is a [`HoldfastError`](#errors); a call with wrong values
raises a `UsageError`.
"""

SECTIONS: dict[str, tuple[str, ...]] = {
    "The application": ("app.application.Holdfast", "app.blocking_app.BlockingHoldfast"),
    "Tasks": (
        "app.task.Task",
        "app.task.BoundTask",
        "app.task.JobHandle",
        "app.task.TaskOptions",
        "notation.job.JobOptions",
        "app.schedules.ScheduleOptions",
    ),
    "Inside a handler": (
        "worker.child.context.Context",
        "worker.outcomes.Retry",
        "worker.outcomes.Bury",
        "worker.outcomes.Release",
        "worker.outcomes.Cancelled",
        "worker.child.hooks.AttemptEnd",
        "worker.child.logs.AttemptFilter",
        "ops.dead_letters.DeadLetter",
        "engines.sqs.delivery.SqsDelivery",
    ),
    "Jobs": (
        "core.model.Job",
        "core.model.State",
        "core.model.WaitingKind",
        "core.model.NewJob",
        "core.model.Receipt",
        "core.model.JobFilter",
        "core.model.Lease",
        "core.model.Note",
        "core.model.Reroute",
        "app.batch.Batch",
    ),
    "Queues": (
        "core.model.Queue",
        "notation.options.QueueOptions",
        "core.model.QueueView",
        "core.backoff.Backoff",
        "core.breaker.Breaker",
    ),
    "Schedules, redrives and workers": (
        "ops.schedules.Schedules",
        "ops.ticks.Schedule",
        "ops.redrives.Redrives",
        "ops.redrives.RedrivePlan",
        "ops.workers.Workers",
        "worker.options.WorkerOptions",
    ),
}
TESTING = (
    "testing.modes.inline",
    "testing.modes.manual",
    "testing.modes.fake",
    "testing.modes.Inline",
    "testing.modes.Manual",
    "testing.modes.Fake",
    "testing.sqs.sqs_client",
    "testing.sqs.sqs_server",
)
ALIASES = (
    "notation.durations.Duration",
    "notation.policies.RateText",
    "notation.policies.BreakerText",
    "app.task.Errors",
    "app.task.Arguments",
    "app.schedules.CallArguments",
    "worker.child.hooks.AttemptOutcome",
    "core.model.KeyPolicy",
    "core.model.KeyHold",
    "core.model.Order",
    "core.model.AfterOn",
    "core.model.ParentDeath",
    "core.model.TallyBy",
    "core.fairness.Fairness",
    "ops.ticks.Missed",
)
INTEGRATIONS = ("fastapi", "flask", "sqlalchemy", "sentry", "structlog")

_LINE = 110
_FIELD_HEAD = "| Field | Type | Default | Meaning |\n|---|---|---|---|"
# Made by Holdfast, not by programs: their constructors are not part of the API.
_GIVEN = {"Task", "BoundTask", "JobHandle", "Context", "Schedules", "Redrives", "Workers", "Batch"}
_GIVEN |= {"Inline", "Manual", "Fake"}
_SIGNATURES = {
    "Holdfast.task": "@app.task\n@app.task(**options: Unpack[TaskOptions])",
    "Holdfast.middleware": '@app.middleware\n@app.middleware(only: Literal["sync", "async"])',
    "Holdfast.run_worker": (
        "def run_worker(*, count: int = 1, **options: Unpack[WorkerOptions]) -> int"
    ),
}
_HIDDEN = {"Holdfast.home", "Holdfast.handlers", "Holdfast.declared_schedules", "Job.state_code"}
_HIDDEN |= {"Job.has_receipt", "Task.handler", "Task.signature", "AttemptFilter.filter"}
_HIDDEN |= {"BlockingHoldfast.handlers", "BlockingHoldfast.declared_schedules"}


def page() -> str:
    """The whole page."""
    lines = [INTRO]
    for title, places in SECTIONS.items():
        lines.append(f"## {title}\n")
        for place in places:
            lines += _named(place)
    lines.append("## Types of values\n")
    lines += _aliases()
    lines.append("## Errors\n")
    lines += _errors()
    lines.append("## Testing\n")
    lines.append(f"`holdfast.testing`. {_prose(testing.__doc__)}")
    for place in TESTING:
        lines += _named(place)
    lines += _fixtures()
    lines.append("## Integrations\n")
    for name in INTEGRATIONS:
        lines += _integration(name)
    return "\n".join(lines).rstrip() + "\n"


def documented() -> set[str]:
    """The public names on the page."""
    places = [*TESTING, *(place for places in SECTIONS.values() for place in places)]
    named = {place.rpartition(".")[2] for place in places}
    return named | {error.__name__ for error in errors.BY_CODE.values()}


@dataclass(frozen=True)
class Module:
    """A parsed module, and what a name in it stands for."""

    tree: ast.Module

    def find(self, name: str) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | str:
        for node in self.tree.body:
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    if node.name == name:
                        return node
                case ast.Assign(targets=[ast.Name(id=found)], value=ast.Name(id=other)):
                    if found == name:
                        return other
                case _:
                    pass
        raise AssertionError(f"{name} is not defined in its module: correct tests/docs/python.py")


@cache
def _module(name: str) -> Module:
    path = PACKAGE.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return Module(ast.parse(file.read_text()))


def _named(place: str) -> Iterator[str]:
    module, _, name = place.rpartition(".")
    node = _module(module).find(name)
    if isinstance(node, str):
        node = _module(module).find(node)
    assert not isinstance(node, str)
    yield f"### `{name}`\n"
    if isinstance(node, ast.ClassDef):
        yield from _class(module, name, node)
    else:
        yield from _function("", node)


def _class(module: str, name: str, node: ast.ClassDef) -> Iterator[str]:
    bases = [_resolved(module, base) for base in node.bases]
    parts = [node, *(each for each in bases if each is not None)]
    # The first of a name is the one that counts, as in Python.
    by_name = {each.name: each for part in reversed(parts) for each in _functions(part)}
    functions = list(
        dict.fromkeys(by_name[each.name] for part in parts for each in _functions(part))
    )
    constructor = next((each for each in functions if each.name == "__init__"), None)
    if constructor is not None and name not in _GIVEN:
        yield _code(_call(name, constructor, method=True))
    yield _prose(ast.get_docstring(node))
    yield from _fields(name, node, parts)
    shown = [each for each in functions if _is_shown(name, each)]
    properties = [each for each in shown if _is_property(each)]
    if properties:
        yield "| Property | Type | Meaning |\n|---|---|---|"
        for each in properties:
            kind = _cell(ast.unparse(each.returns)) if each.returns else ""
            yield f"| `{each.name}` | `{kind}` | {_cell(ast.get_docstring(each) or '')} |"
        yield ""
    for each in shown:
        if not _is_property(each):
            yield f"#### `{name}.{each.name}`\n"
            yield from _function(name, each)
    same = [
        target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign | ast.Assign)
        for target in ([each.target] if isinstance(each, ast.AnnAssign) else each.targets)
        if isinstance(target, ast.Name) and isinstance(each.value, ast.Call)
    ]
    if name.startswith("Blocking"):
        yield (
            "These methods have the parameters and results of the same methods of `Holdfast`, and "
            f"block until they are done: {', '.join(f'`{each}`' for each in same)}.\n"
        )


def _resolved(module: str, base: ast.expr) -> ast.ClassDef | None:
    """The class behind a base, if it is ours and has public members."""
    name = ast.unparse(base).partition("[")[0]
    for node in ast.walk(_module(module).tree):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            source = node.module or ""
            if not source.startswith("holdfast."):
                return None
            found = _module(source.removeprefix("holdfast.")).find(name)
            return found if isinstance(found, ast.ClassDef) else None
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    return None


def _functions(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The methods without overloads, which only type checkers read, and without setters."""
    return [
        each
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any(
            ast.unparse(it) == "overload" or ast.unparse(it).endswith(".setter")
            for it in each.decorator_list
        )
    ]


def _is_shown(owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if node.name.startswith("_") or f"{owner}.{node.name}" in _HIDDEN:
        return False
    text = ast.get_docstring(node)
    assert text, f"{owner}.{node.name} is public: give it a docstring"
    return not text.startswith("For the runner")


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def _function(owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    shown = _SIGNATURES.get(f"{owner}.{node.name}") or _signature(node, method=bool(owner))
    yield _code(shown)
    yield _prose(ast.get_docstring(node))
    if options := re.search(r"Unpack\[(\w+)\]", shown):
        yield f"The options are those of [`{options[1]}`](#{options[1].lower()}).\n"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> str:
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return _call(f"{word} {node.name}", node, method=method, after=returns)


def _call(
    head: str, node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool, after: str = ""
) -> str:
    """The head with the parameters, one on each line if they do not fit on one."""
    parameters = [each for each in _parameters(node.args) if not (method and each == "self")]
    line = f"{head}({', '.join(parameters)}){after}"
    if len(line) <= _LINE:
        return line
    return f"{head}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){after}"


def _parameters(given: ast.arguments) -> Iterator[str]:
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + [*given.defaults]
    for at, (each, default) in enumerate(zip(plain, defaults, strict=True), start=1):
        yield _parameter(each, default)
        if at == len(given.posonlyargs) and plain[0].arg != "self":
            yield "/"
    if given.vararg is not None:
        yield "*" + _parameter(given.vararg)
    elif given.kwonlyargs:
        yield "*"
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _parameter(each, default)
    if given.kwarg is not None:
        yield "**" + _parameter(given.kwarg)


def _parameter(node: ast.arg, default: ast.expr | None = None) -> str:
    kind = "" if node.annotation is None else f": {ast.unparse(node.annotation)}"
    return f"{node.arg}{kind}" + ("" if default is None else f" = {ast.unparse(default)}")


def _fields(name: str, node: ast.ClassDef, parts: list[ast.ClassDef]) -> Iterator[str]:
    if ast.unparse(node.bases[0]) == "StrEnum" if node.bases else False:
        yield from _members(node)
        return
    kinds = {ast.unparse(base) for part in parts for base in part.bases}
    data = {"msgspec.Struct", "TypedDict"} & kinds or node.decorator_list
    found = [row for part in parts for row in _rows(part)] if data else []
    if not found:
        return
    described = _described(name)
    options = "TypedDict" in kinds
    yield "| Option | Type | Meaning |\n|---|---|---|" if options else _FIELD_HEAD
    for field, kind, default, text in found:
        meaning = text or described.get(field, "")
        cells = [f"`{field}`", f"`{kind}`", *([] if options else [default]), meaning]
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")
    yield ""


def _rows(node: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        kind = re.sub(r"Annotated\[(\w+), .*?\)\]", r"\1", ast.unparse(each.annotation))
        if each.target.id.startswith("_") or kind.startswith(("Final", "ClassVar")):
            continue
        default = "" if each.value is None else f"`{_default(each.value)}`"
        default = "" if "field(" in default else default
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = _cell(str(after.value.value))
        yield each.target.id, kind.replace("|", "\\|"), default.replace("|", "\\|"), text


def _default(node: ast.expr) -> str:
    """A default value, with bounds that are products such as `30 * bounds.SECOND_MS` computed."""
    text = ast.unparse(node)
    if "bounds." in text or "_000" in text:
        value = eval(text, {"bounds": bounds})
        return f"{value:_}" if isinstance(value, int) else repr(value)
    return text


def _members(node: ast.ClassDef) -> Iterator[str]:
    values = [
        f"`{target.id}` (`{ast.literal_eval(each.value)!r}`)"
        for each in node.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    ]
    yield f"Values: {', '.join(values)}.\n"


def _described(name: str) -> dict[str, str]:
    """Texts of options that have no docstring: those of jobs share the texts of the flags."""
    if name not in {"JobOptions", "ScheduleOptions", "TaskOptions"}:
        return {}
    return {field: _cell(re.sub(r"--(\w+)", r"`\1`", each.help)) for field, each in FIELDS.items()}


def _aliases() -> Iterator[str]:
    yield "| Name | Stands for |\n|---|---|"
    for place in ALIASES:
        module, _, name = place.rpartition(".")
        [value] = [
            node.value
            for node in _module(module).tree.body
            if (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
            or (isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name)
        ]
        assert value is not None
        yield f"| `{name}` | `{_cell(ast.unparse(value))}` |"
    yield ""


def _errors() -> Iterator[str]:
    tree = re.sub(r"^.*?\n\n", "", inspect.cleandoc(errors.__doc__ or ""), flags=re.DOTALL)
    yield "All are in `holdfast` and in `holdfast.errors`. Catch a group by its base class.\n"
    yield f"```text\n{tree}\n```\n"
    yield "| Error | Code | Meaning, and what to do |\n|---|---|---|"
    for code, error in errors.BY_CODE.items():
        yield f"| `{error.__name__}` | `{code}` | {_cell(error.__doc__ or '')} |"
    yield ""


def _fixtures() -> Iterator[str]:
    yield "### Fixtures of pytest\n"
    yield "The plugin is found by pytest once Holdfast is installed.\n"
    yield "| Fixture | Meaning |\n|---|---|"
    for node in _module("testing.plugin").tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield f"| `{node.name}` | {_cell(ast.get_docstring(node) or '')} |"
    yield ""


def _integration(name: str) -> Iterator[str]:
    tree = _module(f"integrations.{name}").tree
    yield f"### `holdfast.integrations.{name}`\n"
    yield (
        _prose(ast.get_docstring(tree)).rstrip() + f" See [the guide](../integrations/{name}.md).\n"
    )
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        match node, after:
            case ((ast.FunctionDef() | ast.AsyncFunctionDef()), _) if node.name[0] != "_":
                yield from _function("", node)
            case (
                ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ) if not found.startswith("_"):
                yield _code(f"{found} = {ast.unparse(value)}")
                yield _prose(text)
            case _:
                pass


def _code(text: str) -> str:
    # Not `python`: the tests run such blocks as programs.
    return f"```py\n{text}\n```\n"


def _prose(text: str | None) -> str:
    """Paragraphs of a docstring, each on one line."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text or ""))
    return "\n\n".join(" ".join(each.split()) for each in paragraphs) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
