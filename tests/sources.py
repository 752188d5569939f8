"""The package's own source files, parsed, for the tests that read instead of run them."""

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"


@dataclass(frozen=True, slots=True)
class Source:
    """`module` is its dotted name below the package: `engines.sqlite.schema`, "" for the root."""

    module: str
    text: str
    is_package: bool = False

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def is_in(self, *prefixes: str) -> bool:
        return any(is_within(self.module, prefix) for prefix in prefixes)


def read_all() -> list[Source]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        found.append(Source(module, path.read_text(), is_package))
    assert found, f"no sources below {PACKAGE}"
    return found


def is_within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")
