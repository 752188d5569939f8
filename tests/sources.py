"""The source files of our packages, parsed, for the tests that read instead of run them.

Modules of `holdfast` are named without the package, those of `holdfast_fleet` begin with `fleet`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"
PACKAGES = {PACKAGE: "", ROOT / "src" / "holdfast_fleet": "fleet"}


@dataclass(frozen=True)
class Source:
    """`module` is its dotted name below the package: `engines.sqlite.schema`, "" for the root."""

    module: str
    text: str
    is_package: bool = False

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.text)

    @property
    def class_names(self) -> list[str]:
        return [node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def folder(self) -> str:
        """The dotted name of the folder that the file is in."""
        return self.module if self.is_package else self.module.rpartition(".")[0]

    def is_in(self, *prefixes: str) -> bool:
        return any(is_within(self.module, prefix) for prefix in prefixes)


# Only the last tree is kept: the nodes of all files are 700,000 objects, and parsing takes three
# times as long if each search for garbage meets them.
@lru_cache(maxsize=1)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def read_all() -> list[Source]:
    found = []
    for package, top in PACKAGES.items():
        paths = sorted(package.rglob("*.py"))
        assert paths, f"no sources below {package}"
        for path in paths:
            parts = path.relative_to(package).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            module = ".".join(filter(None, [top, *(parts[:-1] if is_package else parts)]))
            found.append(Source(module, path.read_text(), is_package))
    return found


def in_tree(target: str) -> str | None:
    """The name, as in `Source.module`, of something that is imported from our packages."""
    top, _, name = target.partition(".")
    if top == "holdfast":
        return name
    return ".".join(filter(None, ["fleet", name])) if top == "holdfast_fleet" else None


def is_within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def imports(source: Source, *, types: bool = True) -> Iterator[tuple[int, str]]:
    """Each imported thing with its line, lazy imports included; without `types`, not those that are
    only for type checkers. The name is complete: a name from a package may itself be a module."""
    nodes = ast.walk(source.tree) if types else _executed(source.tree)
    for node in nodes:
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                base = _absolute(source, node)
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
            case _:
                pass


def imported_modules(source: Source, sources: list[Source]) -> set[str]:
    """The modules of the package that a module imports at some time when it runs."""
    known = {each.module for each in sources}
    found = set()
    for _, target in imports(source, types=False):
        name = in_tree(target)
        if name is not None:
            found.add(name if name in known else name.rpartition(".")[0])
    return found - {source.module}


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those below `if TYPE_CHECKING`."""
    found = [node]
    while found:
        match found.pop():
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case each:
                yield each
                found += ast.iter_child_nodes(each)


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    here = ["holdfast", *filter(None, source.module.split("."))]
    up = node.level - (1 if source.is_package else 0)
    return ".".join([*here[: len(here) - up], *filter(None, [node.module])])
