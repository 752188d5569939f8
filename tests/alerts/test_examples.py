"""The Prometheus and Grafana examples use existing metrics, labels and operations."""

import json
import re
from typing import Any

import yaml

from holdfast.alerts.rules import COOL_DOWN, RULES
from holdfast.cli.root import COMMANDS
from holdfast.config import SETTINGS
from holdfast.server.application import OPERATIONS
from holdfast.telemetry.meter import COUNTERS
from tests.server.live.test_metrics import table
from tests.sources import ROOT

_NAME = re.compile(r"\bholdfast_[a-z_]+")
_SELECTOR = re.compile(r"(holdfast_[a-z_]+)\{([^}]*)\}")
_LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')


def exported() -> dict[str, tuple[str, ...]]:
    """Every name of a sample, and its labels."""
    found: dict[str, tuple[str, ...]] = {}
    for name, kind, labels, _ in table():
        if kind == "histogram":
            found |= {f"{name}_{part}": labels for part in ("sum", "count")}
            found[f"{name}_bucket"] = (*labels, "le")
        else:
            found[name] = labels
    return found


def rules() -> list[dict[str, Any]]:
    page = yaml.safe_load((ROOT / "docs" / "prometheus-alerts.yml").read_text())
    return [rule for group in page["groups"] for rule in group["rules"]]


def board() -> Any:
    return json.loads((ROOT / "docs" / "grafana.json").read_text())


def expressions() -> list[str]:
    found = [rule["expr"] for rule in rules()]
    panels = board()["panels"]
    return found + [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_metric_and_label_is_exported() -> None:
    names = exported()
    operations = {each.name for each in OPERATIONS}
    for expression in expressions():
        assert _NAME.search(expression), expression
        assert set(_NAME.findall(expression)) <= set(names), expression
        assert expression.count("(") == expression.count(")"), expression
        for name, selector in _SELECTOR.findall(expression):
            for label, value in _LABEL.findall(selector):
                assert label in names[name], expression
                if label == "operation":
                    assert set(value.split("|")) <= operations, expression


def test_annotations_use_labels_that_remain() -> None:
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            assert re.search(rf"by \([^)]*\b{label}\b", rule["expr"]), rule["alert"]
    for panel in board()["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), panel["title"]


def test_remedies_are_commands() -> None:
    commands = {words for words, _ in COMMANDS}
    remedies = [rule["annotations"].get("remedy") for rule in rules()]
    found = [" ".join(re.findall(r"[a-z]+", each)[1:3]) for each in remedies if each]
    assert found
    assert all(each in commands or each.split()[0] in commands for each in found), found


def test_the_board_shows_every_counter_that_matters_and_no_panel_covers_another() -> None:
    text = json.dumps(board())
    for name in COUNTERS:
        if name not in ("duplicates", "released", "forwarded", "cancelled", "renewals"):
            assert f"holdfast_{name}_total" in text, name
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_the_rules_are_in_the_documentation() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    part = page[page.index("## Alerts") : page.index("## Tracing")]
    rows = [line.split("|") for line in part.splitlines() if line.startswith("| `")]
    found = [(cells[1].strip().strip("`"), cells[3].strip(), cells[4].strip()) for cells in rows]
    assert found == [
        (rule.name, f"`{rule.setting}` {SETTINGS[rule.setting].default}", rule.severity)
        for rule in RULES.values()
    ]
    assert f"`{COOL_DOWN}` ({SETTINGS[COOL_DOWN].default})" in part
