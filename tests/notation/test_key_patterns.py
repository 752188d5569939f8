"""Patterns of keys: which keys they match, and which texts are refused."""

import time

import pytest

from holdfast.errors import ConfigError
from holdfast.notation.key_patterns import PATTERNS_MAX, read_key_patterns


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("password", "password", True),
        ("password", "user.password", True),
        ("password", "Password", True),
        ("password", "password.hash", False),
        ("password", "passwords", False),
        ("*_token", "api_token", True),
        ("*_token", "_TOKEN", True),
        ("*_token", "token", False),
        ("*secret*", "a.my-secret-key", True),
        ("card.*", "card.number", True),
        ("card.*", "order.card.number", True),
        ("card.*", "card", False),
        ("card.*", "number", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.b.c", False),
        ("*", "anything", True),
        ("naïve", "naïve", True),
    ],
)
def test_a_pattern_matches_the_last_parts_of_a_path(pattern: str, path: str, matches: bool) -> None:
    [found] = read_key_patterns("x", pattern)
    assert found.matches(path.split(".")) is matches
    assert not matches or found.fragment in path.lower().encode()


def test_patterns_are_separated_by_commas() -> None:
    found = read_key_patterns("x", " password, *_token ,,card.*")
    assert [".".join(each.parts) for each in found] == ["password", "*_token", "card.*"]


@pytest.mark.parametrize(
    "text",
    [
        *("", " , ", "a b", "a..b", ".a", "a.", "a?", "[ab]", 'a"', "a\\b", "x" * 201),
        ".".join("a" * 11),
        ",".join(f"k{number}" for number in range(PATTERNS_MAX + 1)),
    ],
)
def test_invalid_patterns_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"dashboard-redact .*password,? ?\*_token|such as"):
        read_key_patterns("dashboard-redact", text)


def test_many_stars_and_long_keys_take_linear_time() -> None:
    [found] = read_key_patterns("x", "*a" * 50 + "b")
    started = time.process_time()
    assert not found.matches(["a" * 100_000])
    assert time.process_time() - started < 5
