"""Every module has a short docstring, functions are short, and SQL is never built from values."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.sources import Source, read_all

FUNCTION_LINES_MAX = 60
DOCSTRING_LINES_MAX = 8
# These docstrings are the place of something longer: the tree of errors, and the engine's laws.
LONG_DOCSTRINGS = ("errors", "engines.base")

SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|PRAGMA|TRUNCATE|LISTEN|NOTIFY)\s"
)
RUNS_SQL = ("execute", "executemany", "executescript", "fetch", "fetchrow", "fetchval")
# Beside a statement put together from constant pieces, this says why it is safe.
SQL_MARKER = "# sql:"


def test_sizes_docstrings_and_no_sql_that_is_built_from_values() -> None:
    """In one test, so that each file is parsed once."""
    faults = [
        fault for source in read_all() for fault in (*shape_faults(source), *sql_faults(source))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        '"""' + "line\n" * 9 + '"""\n',
        '"""Fine."""\ndef f():\n' + "    x = 1\n" * FUNCTION_LINES_MAX,
    ],
)
def test_a_bad_shape_is_found(text: str) -> None:
    assert shape_faults(Source("core.sample", text))


def test_a_good_shape_is_not_found() -> None:
    good = '"""Fine."""\ndef f():\n' + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)
    assert not shape_faults(Source("core.sample", good))
    assert not shape_faults(Source("core", ""))


@pytest.mark.parametrize(
    "text",
    [
        'cursor.execute(f"UPDATE job SET a = {value}")',
        'cursor.execute("SELECT * FROM " + table)',
        'cursor.execute("SELECT * FROM %s" % table)',
        'cursor.execute("SELECT {}".format(value))',
        'text = f"SELECT {columns} FROM job"',
        'def f(x):\n    return "DELETE FROM job WHERE id IN (" + x + ")"',
        "connection.fetch(head + tail)",
        'cursor.execute(" ".join(parts))',
    ],
)
def test_built_sql_is_found(text: str) -> None:
    assert sql_faults(Source("engines.sample", text))


@pytest.mark.parametrize(
    "text",
    [
        'cursor.execute("SELECT 1", (value,))',
        'text = f"SELECT {COLUMNS} FROM {schema.TABLE}"',
        'text = "SELECT " + COLUMNS + " FROM job"',
        'text = f"SELECT {c} FROM job"  # sql: the columns are those of the schema',
        "cursor.execute(statement)",
        'say(f"{count} jobs")',
    ],
)
def test_constant_sql_is_not_found(text: str) -> None:
    assert not sql_faults(Source("engines.sample", text))


def shape_faults(source: Source) -> list[str]:
    faults = []
    tree = source.tree
    docstring = ast.get_docstring(tree)
    if tree.body and docstring is None:
        faults.append("no docstring that says what it owns")
    if docstring and source.module not in LONG_DOCSTRINGS:
        lines = len(docstring.splitlines())
        if lines > DOCSTRING_LINES_MAX:
            faults.append(f"a docstring of {lines} lines, at most {DOCSTRING_LINES_MAX}")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                faults.append(f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}")
    return [f"holdfast.{source.module}: {fault}" for fault in faults]


def sql_faults(source: Source) -> list[str]:
    lines = source.text.splitlines()
    return [
        f"holdfast.{source.module} line {node.lineno}: SQL built from values; bind them, "
        f"or say why it is safe beside it: {SQL_MARKER} ..."
        for node in suspects(source.tree)
        if not any(SQL_MARKER in line for line in lines[node.lineno - 1 : node.end_lineno])
    ]


def suspects(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=[first, *_]) if name in RUNS_SQL:
                if is_built(first):
                    yield first
            case ast.JoinedStr() | ast.BinOp() | ast.Call():
                if is_built(node) and SQL.match(beginning(node)):
                    yield node
            case _:
                pass


def is_built(node: ast.expr) -> bool:
    """Is this text put together from something else than constants?"""
    match node:
        case ast.JoinedStr():
            holes = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            return not all(is_constant(hole) for hole in holes)
        case ast.BinOp(op=ast.Add() | ast.Mod()):
            return not (is_constant(node.left) and is_constant(node.right))
        case ast.Call(func=ast.Attribute(attr="format" | "join", value=ast.Constant())):
            return not all(is_constant(argument) for argument in node.args)
        case _:
            return False


def is_constant(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_").isupper()
        case ast.BinOp() | ast.JoinedStr():
            return not is_built(node)
        case _:
            return False


def beginning(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[first, *_]):
            return beginning(first)
        case ast.BinOp():
            return beginning(node.left)
        case ast.Call(func=ast.Attribute(value=value)):
            return beginning(value)
        case _:
            return ""
