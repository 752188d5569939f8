"""Jobs that earlier schemas moved to a dead queue to wait there, before and after the migration."""

from holdfast.conformance.contract.cases import a_job, a_queue, from_default, lease_ids, settle
from holdfast.core.limits import Limit
from holdfast.core.model import Reason, State
from holdfast.core.verdict import Complete
from holdfast.engines.base import Engine


async def enqueue_moved_jobs(engine: Engine) -> None:
    """The caller then gives `moved`, `alone` and `leased` a reason, and `leased` a lease."""
    await engine.declare(a_queue("grave", limits=(Limit(name="l", concurrency=1),)))
    for id_, group in {"moved": "g", "next": "g", "alone": None, "other": None}.items():
        await engine.enqueue([a_job(id_, queue="grave", group=group)])
    await engine.enqueue([a_job("child", after=("alone",), after_on="death"), a_job("leased")])


async def expect_dead_letters(engine: Engine) -> None:
    """Those that waited are dead letters; the group, the lane and the child go on without them."""
    [view] = await engine.queues(names=("grave",))
    assert (view.ready, view.blocked, view.dead) == (2, 0, 2)
    await engine.recount(100)
    for id_ in ("next", "other"):
        [lease] = await engine.lease(from_default(9, queues=("grave",)))
        assert lease.id == id_
        await settle(engine, lease, Complete())
    assert await lease_ids(engine) == ["child"], "its parent is dead"
    dead = await engine.lease(from_default(9, queues=("grave",), dead=True))
    assert [(lease.id, lease.job.reason) for lease in dead] == [
        ("moved", Reason.ATTEMPTS),
        ("alone", Reason.ATTEMPTS),
    ]
    job = await engine.get("leased")
    assert job is not None
    assert (job.state, job.reason) == (State.LEASED, None)
    assert await engine.recount(100) == 0
