"""Threshold settings as people write them, and the rules they apply to."""

import pytest

from holdfast.alerts.rules import COOL_DOWN, RULES, Thresholds
from holdfast.config import SETTINGS, Levels, Settings
from holdfast.errors import ConfigError


def thresholds(wrong: list[str] | None = None, **stored: str) -> Thresholds:
    named = {f"alert-{name.replace('_', '-')}": text for name, text in stored.items()}
    return Thresholds(Settings(named, {}), ([] if wrong is None else wrong).append)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("100", Levels(100)),
        (" 100 , mail:5000 , old: off ", Levels(100, {"mail": 5000, "old": None})),
        ("off,mail:1", Levels(None, {"mail": 1})),
        ("mail:1,OFF", Levels(None, {"mail": 1})),
        ("0", Levels(0)),
    ],
)
def test_levels_of_queues(text: str, levels: Levels) -> None:
    assert SETTINGS["alert-depth"].read(text) == levels


@pytest.mark.parametrize(
    "text",
    ["", ",", "1,2", "mail:1", "many", "-1", "1.5", "1,a:1,a:2", "1,a b:1", "1,:2", "1,a:", "5m"],
)
def test_invalid_levels(text: str) -> None:
    with pytest.raises(ConfigError, match="alert-depth"):
        SETTINGS["alert-depth"].read(text)


def test_ages_are_durations() -> None:
    assert SETTINGS["alert-age"].read("90s, a:2h") == Levels(90_000, {"a": 7_200_000})
    with pytest.raises(ConfigError, match="expected a duration"):
        SETTINGS["alert-age"].read("soon")


def test_a_level_is_for_all_queues() -> None:
    assert SETTINGS["alert-disk"].read("off") == Levels(None)
    with pytest.raises(ConfigError, match="or off"):
        SETTINGS["alert-disk"].read("100,mail:5")


def test_by_default_every_rule_is_on() -> None:
    levels = thresholds()
    found = {name: levels.of(rule, "any") for name, rule in RULES.items()}
    assert found == {
        "dead_letters": 10,
        "dead_depth": 100,
        "depth": 100,
        "oldest_age": 300_000,
        "no_worker": 30_000,
        "retention": 80,
        "in_flight": 90,
        "partition_out": 0,
        "disk_floor": 1024**3,
        "dead_messages": 10,
        "dead_message_depth": 100,
        "unreadable_records": 0,
    }
    assert levels.cool_down_ms == 300_000
    assert {rule.setting for rule in RULES.values()} | {COOL_DOWN} == {
        name for name in SETTINGS if name.startswith("alert-")
    }


def test_a_queue_has_its_own_level() -> None:
    levels = thresholds(depth="off,mail:7", partition="no")
    assert levels.of(RULES["depth"], "mail") == 7
    assert levels.of(RULES["depth"], "other") is None
    assert levels.of(RULES["partition_out"]) is None


def test_an_unreadable_setting_is_reported_and_the_default_applies() -> None:
    wrong: list[str] = []
    levels = thresholds(wrong, depth="many", cool_down="soon")
    assert levels.of(RULES["depth"], "mail") == 100
    assert levels.cool_down_ms == 300_000
    assert len(wrong) == 2
