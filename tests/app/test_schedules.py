"""`@app.schedule`: what code may declare, and what is stored."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import BlockingHoldfast, Holdfast
from holdfast.errors import ConfigError, InvalidJob, UsageError


def app_with(decorate: Callable[[Holdfast], Any]) -> Holdfast:
    app = Holdfast("memory:", name="shop")

    @app.task(name="reports:send", queue="reports", max_attempts=2)
    def send(kind: str, pages: int = 1) -> None: ...

    decorate(app)(send)
    return app


def test_the_fields_of_the_stored_schedule() -> None:
    def decorate(app: Holdfast) -> Any:
        return app.schedule(
            cron="0 2 * * *",
            timezone="Europe/Berlin",
            name="nightly",
            arguments={"kind": "night", "pages": 3},
            missed="all",
            missed_max=5,
            grace="10s",
            queue="slow",
            tenant="acme",
            labels={"a": "1"},
        )

    declared = app_with(decorate).declared_schedules
    assert (declared.program, declared.keep) == ("shop", False)
    [schedule] = declared.schedules
    assert (schedule.name, schedule.cron, schedule.zone) == (
        "nightly",
        "0 2 * * *",
        "Europe/Berlin",
    )
    assert (schedule.missed, schedule.missed_max, schedule.grace_ms) == ("all", 5, 10_000)
    job = schedule.job
    assert (job.id, job.task) == ("schedule:nightly", "reports:send")
    assert job.payload == b'{"kind":"night","pages":3}'
    assert (job.queue, job.tenant, job.labels) == ("slow", "acme", {"a": "1"})
    assert job.overrides.max_attempts == 2, "as the task says"


def test_several_schedules_and_arguments_in_order() -> None:
    def decorate(app: Holdfast) -> Any:
        weekly = app.schedule(cron="@weekly", name="weekly", arguments=["week"])
        often = app.schedule(every="15m", arguments=("often", 2))
        return lambda task: weekly(often(task))

    often, weekly = app_with(decorate).declared_schedules.schedules
    assert (often.name, often.every_ms) == ("reports.send", 15 * 60_000)
    assert often.job.payload == b'{"kind":"often","pages":2}'
    assert (weekly.name, weekly.job.queue) == ("weekly", "reports")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, 'has no rule: give cron="0 2 \\* \\* \\*" or every="15m"'),
        ({"cron": "@daily", "every": "1h"}, "either a cron rule or an interval, not both"),
        ({"cron": "0 2 * *"}, "cron rule '0 2 \\* \\*' cannot be read"),
        ({"cron": "0 2 31 2 *"}, "cannot be read .Bad day-of-month."),
        ({"cron": "@daily", "timezone": "Europe/Bonn"}, "unknown time zone 'Europe/Bonn'"),
        ({"every": "often"}, 'every "often": expected a duration'),
        ({"every": "1ms"}, "every_ms 1 .* out of range"),
        ({"every": "1h", "name": "a b"}, "schedule name 'a b' is not valid"),
        ({"every": "1h", "missed": "never"}, "missed"),
        ({"every": "1h", "key": "k"}, "a schedule has no key"),
        ({"every": "1h", "arguments": 3}, "arguments"),
    ],
)
def test_a_wrong_schedule_is_refused_where_it_is_declared(
    options: dict[str, Any], error: str
) -> None:
    with pytest.raises(UsageError, match=error):
        app_with(lambda app: app.schedule(**options))


def test_arguments_are_checked_before_they_are_stored() -> None:
    app = app_with(lambda app: app.schedule(every="1h", arguments={"kind": 3}))
    with pytest.raises(InvalidJob, match="kind"):
        _ = app.declared_schedules


def test_a_schedule_needs_a_task_and_a_name_of_its_own() -> None:
    app = Holdfast("memory:")
    with pytest.raises(UsageError, match=r"put it above @app\.task"):

        @app.schedule(every="1h")  # type: ignore[type-var]  # the error under test
        def plain() -> None: ...

    with pytest.raises(UsageError, match="give one of the two another name="):

        @app.schedule(every="1h")
        @app.schedule(every="2h")
        @app.task
        def twice() -> None: ...


def test_a_program_is_named_after_its_module_unless_it_has_a_name() -> None:
    assert Holdfast("memory:").name == __name__
    assert BlockingHoldfast("memory:").declared_schedules.program == __name__
    assert Holdfast("memory:", name="shop").name == "shop"
    with pytest.raises(UsageError, match="name 'a b' of a Holdfast is not valid"):
        Holdfast("memory:", name="a b")


async def test_sync_stores_and_removes() -> None:
    app = app_with(lambda app: app.schedule(every="1h", arguments=("x",)))
    async with app:
        assert (await app.sync_schedules()).added == ("reports.send",)
        assert (await app.sync_schedules()).added == ()
        [stored] = await app.schedules.all()
        assert stored.program == "shop"
        app._task_schedules.clear()
        assert (await app.sync_schedules()).removed == ("reports.send",)


def test_sync_blocking() -> None:
    with BlockingHoldfast("memory:", name="shop") as app:

        @app.schedule(every="1h")
        @app.task
        def hourly() -> None: ...

        assert len(app.sync_schedules().added) == 1
        assert [each.program for each in app.schedules.all()] == ["shop"]
        app.schedules.remove(app.schedules.all()[0].name)


def test_an_invalid_rule_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match="write minute hour day month weekday"):
        app_with(lambda app: app.schedule(cron="every day"))
