"""The live feed while one of the clocks is wrong."""

from tests.server.test_live import Stage, ids, parsed, stage

__all__ = ["stage"]

HOUR_MS = 3_600_000


async def test_a_clock_that_is_ahead_hides_nothing_of_the_others(stage: Stage) -> None:
    stream = await stage.stream()
    await stage.tell("ahead", at=stage.now + HOUR_MS)
    await stage.feed.round()
    assert [(each.id, each.data["id"]) for each in parsed(await anext(stream))] == [("", "ahead")]
    for name in ("a", "b"):
        key = await stage.tell(name)
        await stage.feed.round()
        await stage.feed.round()
        told = parsed(await anext(stream))
        assert [(each.id, each.data["id"]) for each in told] == [(key, name)]
    key = await stage.tell("c")
    stage.feed = Stage(stage.app).feed
    again = await stage.stream(key)
    await stage.tell("d")
    await stage.feed.round()
    assert ids(await anext(again)) == ["d"]


async def test_a_clock_that_was_set_back_hides_nothing(stage: Stage) -> None:
    stream = await stage.stream()
    await stage.tell("before")
    await stage.feed.round()
    assert ids(await anext(stream)) == ["before"]
    stage.now -= HOUR_MS
    await stage.tell("after")
    await stage.feed.round()
    assert ids(await anext(stream)) == ["after"]
