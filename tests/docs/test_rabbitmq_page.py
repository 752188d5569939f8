"""Statements of docs/engines/rabbitmq.md about RabbitMQ itself are true."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

from holdfast.conformance.rabbitmq_server import RabbitNode
from holdfast.core.model import LeaseRequest, NewJob, Queue
from holdfast.engines.extras import Brokered, extra
from holdfast.engines.rabbitmq.topology import RabbitNames, dead_arguments, worker_arguments
from holdfast.engines.registry import open_engine
from tests.docs.test_docs import ROOT

PAGE = (ROOT / "docs" / "engines" / "rabbitmq.md").read_text()


async def test_the_permissions_on_the_page_are_enough(
    rabbit_node: RabbitNode, tmp_path: Path
) -> None:
    own, default = re.findall(r"The user needs .* on `(\S+)`, and write on `(\S+)`\.", PAGE)[0]
    name = f"docs-{uuid4().hex[:8]}"
    rabbit_node.add_vhost(name)
    rabbit_node.add_user(name, "secret")
    rabbit_node.permit(name, name, f"^{own}$", f"^({own}|{default})$", f"^{own}$")
    url = rabbit_node.url(name, name, "secret")
    engine = open_engine(f"brokered:{url},sqlite:///{tmp_path}/ledger.db")
    await engine.open()
    try:
        brokered = extra(engine, Brokered)
        assert brokered is not None
        broker = brokered.broker()
        for queue in ("mail", "worker.eu-1", "worker.eu-2"):
            await engine.declare(Queue(name=queue))
        await engine.lease(LeaseRequest(queues=("mail", "worker.eu-2"), worker="w", wait_ms=10))
        late = NewJob(id="late", task="t", queue="worker.eu-1", expires_ms=1)
        await engine.enqueue([NewJob(id="now", task="t", queue="mail"), late])
        [dead] = await broker.take_dead(10, 20_000)
        assert (dead.id, dead.queue) == ("late", "worker.eu-1")
        await broker.settle_dead([dead])
        status = await broker.status()
        assert (status.error, status.warnings) == ("", ())
    finally:
        await engine.close()


def test_names_and_arguments() -> None:
    names = RabbitNames("holdfast", "default")
    shown = [
        names.notifications,
        names.dead,
        names.full("worker.NAME"),
        *worker_arguments(names, "worker.NAME"),
        *dead_arguments(1),
    ]
    for each in set(shown) - {"x-queue-type"}:
        assert f"`{each}`" in PAGE
    for value in worker_arguments(names, "worker.NAME").values():
        assert (f"{value:,}" if isinstance(value, int) else value) in PAGE
