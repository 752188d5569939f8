"""Routing, compared with an exhaustive search."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.server.application import OPERATIONS
from holdfast.server.http.operation import Routes
from holdfast.server.http.problems import UnknownPath, WrongMethod

PARTS = st.sampled_from(["a", "b", "{x}", "{y}"])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
ASKED = st.lists(
    st.sampled_from(["a", "b", "c", "{x}", "a/b", "ä", "", "%"]), min_size=1, max_size=4
)


def slow(added: list[tuple[str, str]], method: str, parts: list[str]) -> str:
    """The first match; a literal further to the left wins."""
    fitting = []
    for how, path in added:
        wanted = path.split("/")[1:]
        pairs = list(zip(wanted, parts, strict=False))
        if len(wanted) == len(parts) and all(
            part if name.startswith("{") else name == part for name, part in pairs
        ):
            fitting.append(([name.startswith("{") for name in wanted], how, path))
    fitting.sort(key=lambda found: found[0])
    for _, how, path in fitting:
        if how == method:
            return f"{how} {path}"
    return "wrong method" if fitting else "unknown"


def shape(path: str) -> str:
    return path.replace("{y}", "{x}")


@given(
    st.lists(st.tuples(st.sampled_from(["GET", "POST"]), PATHS), max_size=8),
    st.sampled_from(["GET", "POST"]),
    ASKED,
)
def test_find_equals_exhaustive_search(
    added: list[tuple[str, str]], method: str, parts: list[str]
) -> None:
    kept: dict[tuple[str, str], tuple[str, str]] = {}
    routes: Routes[str] = Routes()
    for how, path in added:
        if (how, shape(path)) in kept:
            with pytest.raises(TypeError):
                routes.add(how, path, "twice")
        else:
            kept[how, shape(path)] = (how, path)
            routes.add(how, path, f"{how} {path}")
    asked = "/" + "/".join(quote(part, safe="") for part in parts)
    try:
        found, _ = routes.find(method, asked.encode())
    except WrongMethod:
        found = "wrong method"
    except UnknownPath:
        found = "unknown"
    assert found == slow(list(kept.values()), method, parts)


def test_every_operation_is_found_by_its_own_path() -> None:
    routes: Routes[str] = Routes()
    for each in OPERATIONS:
        routes.add(each.method, each.path, each.name)
    for each in OPERATIONS:
        path = each.path
        for name in each.path_names:
            path = path.replace("{" + name + "}", f"a%2F{name}")
        found, given_names = routes.find(each.method, path.encode())
        assert found == each.name
        assert given_names == {name: f"a/{name}" for name in each.path_names}
