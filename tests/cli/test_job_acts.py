"""`job cancel`, `retry`, `expedite`, `edit` and `delete`."""

import asyncio
import json
from typing import Any

import pytest

from holdfast.core.model import Job, JobFilter
from holdfast.core.verdict import Amendment
from holdfast.core.workers import WorkerOrder
from holdfast.engines.coalesced import Coalesced
from holdfast.ops.workers import ORDERS, Workers
from tests.cli import seed
from tests.cli.program import Cli


def job(id_: str = "j") -> Job:
    found = seed.with_app(lambda app: app.get(id_))
    assert found is not None
    return found


def test_cancel_by_force_tells_the_worker(cli: Cli) -> None:
    seed.enqueue("run")
    seed.lease(worker="w")
    # Asking first, and asking again, is fine.
    for _ in range(2):
        assert cli("job", "cancel", "run").out == "run asked to stop\n"
    assert cli("job", "cancel", "run", "--force").out == "run is being killed by its worker\n"
    assert job("run").cancel_requested
    order = seed.with_app(lambda app: ORDERS.read(app.engine, "w"))
    assert order is not None
    assert order.value is not None
    assert order.value.forced_since(WorkerOrder()) == {"run"}


def test_cancel_ends_waiting_jobs_and_asks_running_ones(cli: Cli) -> None:
    seed.enqueue("run")
    seed.worker("w")
    seed.lease()
    seed.enqueue("wait")
    ran = cli("job", "cancel", "run", "wait", "--text", "no use")
    assert ran == (0, "run asked to stop\nwait cancelled\n", "")
    assert (job("wait").state, job("run").state) == ("cancelled", "leased")
    assert job("run").cancel_requested
    event = job("wait").events[-1]
    assert (event.text, "@" in event.by) == ("no use", True)
    orders = seed.with_app(lambda app: Workers(app.engine).orders())
    assert orders["w"].renew == 1, "its worker renews at once, and so hears of it"


def test_retry_runs_finished_jobs_again(cli: Cli) -> None:
    seed.dead("dead")
    seed.done("done")
    seed.enqueue("gone")
    cli("job", "cancel", "gone")
    assert cli("job", "retry", "dead", "done", "gone", "--delay", "1h").code == 0
    for id_ in ("dead", "done", "gone"):
        assert (job(id_).state, job(id_).attempt) == ("waiting", 0)
        assert job(id_).due_at > job(id_).created_at + 3_000_000


def test_unknown_ids_are_reported_and_the_others_are_changed(cli: Cli) -> None:
    seed.enqueue("j")
    ran = cli("job", "delete", "x", "j", "y", "--json")
    assert ran.code == 3
    assert json.loads(ran.out) == {"deleted": ["j"], "unknown": ["x", "y"], "refused": {}}
    assert 'no job has the id "x, y"' in ran.err
    assert seed.with_app(lambda app: app.get("j")) is None


@pytest.mark.parametrize(
    ("act", "state", "needs"),
    [
        ("cancel", "done", "waiting or leased"),
        ("retry", "waiting", "done or dead or cancelled"),
        ("expedite", "leased", "waiting"),
        ("delete", "leased", "waiting or done or dead or cancelled"),
    ],
)
def test_an_act_is_refused_in_the_wrong_state(cli: Cli, act: str, state: str, needs: str) -> None:
    if state == "done":
        seed.done()
    else:
        seed.enqueue()
    if state == "leased":
        seed.lease()
    before = job()
    ran = cli("job", act, "j")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.strip().endswith(f"it is {state}, and must be {needs}")
    assert (job().state, job().version) == (before.state, before.version)


def test_a_running_job_is_deleted_only_with_force(cli: Cli) -> None:
    seed.enqueue()
    seed.lease()
    assert cli("job", "delete", "j").code == 1
    assert cli("job", "delete", "j", "--force").out == "j deleted\n"


def test_edit_changes_only_the_given_fields(cli: Cli) -> None:
    cli("queue", "create", "mail")
    seed.enqueue(payload=[1], labels={"a": "1", "b": "1"}, headers={"h": "1"}, priority=3)
    line = ["--payload", '{"to": "ä"}', "--label", "b=2", "--label", "c=3", "--expires", "1h"]
    assert cli("job", "edit", "j", *line).out == "j edited\n"
    edited = job()
    assert edited.payload == '{"to":"ä"}'.encode()
    assert (edited.labels, edited.headers) == ({"a": "1", "b": "2", "c": "3"}, {"h": "1"})
    assert edited.priority == 3
    assert edited.expires_at is not None
    assert cli("job", "edit", "j", "--queue", "mail", "--delay", "1h", "--json").json == {
        "edited": ["j"],
        "unknown": [],
        "refused": {},
    }
    moved = job()
    assert (moved.queue, moved.payload) == ("mail", edited.payload)
    assert moved.due_at > edited.due_at + 3_000_000


def test_labels_added_concurrently_stay(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seed.enqueue()
    amend = Coalesced.amend
    overtaken: list[bool] = []

    async def slow(self: Coalesced, wanted: JobFilter, act: Amendment, **more: Any) -> int:
        if not overtaken:
            overtaken.append(True)
            await asyncio.to_thread(cli, "job", "edit", "j", "--label", "theirs=1")
        return await amend(self, wanted, act, **more)

    monkeypatch.setattr(Coalesced, "amend", slow)
    assert cli("job", "edit", "j", "--label", "ours=1").code == 0
    assert job().labels == {"theirs": "1", "ours": "1"}


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["edit", "j"], 2, "nothing to change"),
        (["edit", "j", "--payload", "{"], 2, "payload is not JSON"),
        (["edit", "j", "--payload", "[" * 100_000], 2, "payload is not JSON"),
        (["edit", "j", "--priority", "101"], 2, "priority 101"),
        (["edit", "j", "--expires", "soon"], 2, 'expires "soon"'),
        (["edit", "j", "--priority", "1", "--delay", "soon"], 2, 'delay "soon"'),
        (["edit", "j", "--label", "x"], 2, 'label "x"'),
        (["edit", "j", "--queue", "nowhere"], 3, "queue nowhere does not exist"),
        (["edit", "no", "--priority", "1"], 3, '"no"'),
        (["cancel", "no"], 3, 'no job has the id "no"'),
        (["cancel"], 2, "IDS"),
        (["retry", "j", "--delay", "x"], 2, 'delay "x"'),
    ],
)
def test_an_error_changes_nothing(cli: Cli, line: list[str], code: int, says: str) -> None:
    seed.enqueue()
    before = job()
    ran = cli("job", *line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert says in ran.err
    assert job() == before
