"""The counts beside the jobs compared with the jobs: in the order of need, a part at a time."""

from __future__ import annotations

from holdfast.engines.postgres.steps import Ask, Steps, Store, only

_SLOTS = "SELECT $schema.recount_slots($1::int, $2::int)"
_PARKS = "SELECT $schema.recount_parks($1::int, $2::int)"
_LANES = "SELECT $schema.recount_lanes($1::int, $2::int)"
_HEADS = "SELECT count_, next_ FROM $schema.recount_heads($1::int, $2::bigint, $3::int, $4::int)"
_GROUPS = """
SELECT count_, next_queue, next_grp
FROM $schema.recount_groups($1::int, $2::bigint, $3::int, $4::text, $5::int)
"""
_UNTOLD = "SELECT * FROM $schema.untold($1::int, $2::int)"
_PRUNE = "SELECT $schema.prune_flow($1::int, $2::bigint, $3::int)"


class Rounds:
    """How far the last calls came; `untold` is how many ends the last one has still to tell."""

    def __init__(self) -> None:
        self.untold = 0
        self.lane = 0
        self.group = (0, "")


def recount(store: Store, rounds: Rounds, limit: int) -> Steps[int]:
    """How many were mended. Ends that children were not told of are left as a duty."""
    mended: int = only((yield Ask(_SLOTS, (store.ns, limit), alone=True)))
    mended += only((yield Ask(_PARKS, (store.ns, limit), alone=True)))
    mended += only((yield Ask(_LANES, (store.ns, limit), alone=True)))
    values = (store.ns, store.given_ms, rounds.lane, limit)
    ((count, lane),) = yield Ask(_HEADS, values, alone=True)
    mended += count
    rounds.lane = lane or 0
    groups = (store.ns, store.given_ms, *rounds.group, limit)
    ((count, queue, group),) = yield Ask(_GROUPS, groups, alone=True)
    mended += count
    rounds.group = (0, "") if queue is None else (queue, group)
    left = yield from untold(store, limit)
    yield Ask(_PRUNE, (store.ns, store.given_ms, limit), alone=True)
    rounds.untold = len(left)
    store.duties.endings += left
    return mended + len(left)


def untold(store: Store, limit: int) -> Steps[list[int]]:
    """Ends of parents whose children should know by now: whoever had to tell them is gone."""
    return [row[0] for row in (yield Ask(_UNTOLD, (store.ns, limit), alone=True))]
