"""Partitioned URLs."""

from typing import Any

import pytest

from holdfast.engines.extras import Partitioned, extra
from holdfast.engines.partitioned import PartitionedEngine
from holdfast.engines.registry import open_engine, parts_of, redacted
from holdfast.errors import ConfigError


def test_a_url_names_its_partitions() -> None:
    engine: Any = open_engine("partitioned:memory:,sqlite:///a,b.db,sqlite:////c.db?namespace=n")
    partitioned = extra(engine, Partitioned)
    assert isinstance(partitioned, PartitionedEngine)
    assert [view.name for view in partitioned.partitions()] == [
        "memory:",
        "sqlite:///a,b.db",
        "sqlite:////c.db",
    ]


def test_commas_in_hosts_do_not_separate_partitions() -> None:
    url = "partitioned:postgresql://u:p@h1:1,h2:2/d?namespace=n,postgres://h3/e"
    assert parts_of(url) == [
        "postgresql://u:p@h1:1,h2:2/d?namespace=n",
        "postgres://h3/e",
    ]


def test_no_password_is_shown() -> None:
    url = "partitioned:sqlite:///a.db?namespace=n,postgresql://u:hunter2@h/d?password=hunter3"
    assert redacted(url) == "partitioned:sqlite:///a.db,postgresql://h/d"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("partitioned:", "names its stores"),
        ("partitioned:a.db,b.db", "no scheme"),
        ("partitioned:memory:,partitioned:memory:", "a partition is a single store"),
        ("partitioned:sqlite:///a.db,sqlite:///b.db?colour=1", "colour"),
        (
            "partitioned:" + ",".join(["memory:"] * 17),
            "17 partitions are too many or too few: give 1 to 16",
        ),
    ],
)
def test_errors_name_the_mistake(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_engine(url)
