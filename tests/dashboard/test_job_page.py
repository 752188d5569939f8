"""The page of a job: every act on it, and its output as it is written."""

import asyncio
import shlex
import subprocess
from pathlib import Path

import msgspec
from playwright.async_api import expect

from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.core.model import Job, JobFilter, Note, Reason, Renewal, State
from holdfast.core.verdict import Bury, Edit, Settlement
from tests.cli.program import command, environment
from tests.dashboard import sample_data
from tests.dashboard.conftest import Site, new_token, one_store, sign_in
from tests.dashboard.viewer import TIMEOUT_MS, Viewer
from tests.docs.curl import curl


async def job_of(app: Holdfast, id_: str) -> Job:
    job = await app.get(id_)
    assert job is not None
    return job


async def act(dashboard: Viewer, name: str, **fields: str) -> None:
    """Press the button of an act, fill its form and confirm it."""
    await dashboard.press(f"{name}…")
    for label, text in fields.items():
        await dashboard.fill(label.replace("_", " "), text)
    await dashboard.press(name)
    await expect(dashboard.dialog).to_have_count(0)


@one_store
async def test_every_act_on_a_waiting_job(dashboard: Viewer, app: Holdfast, queue: str) -> None:
    id_ = (await app.enqueue("mail.send", {"to": "a@example.org"}, queue=queue)).id
    await dashboard.go(f"#/jobs/{id_}", shows="text=Expedite…")
    state = dashboard.page.locator(".job-state")

    await dashboard.press("More")
    await act(dashboard, "Delay", Delay="2h")
    await expect(state).to_have_text("scheduled")
    before = await job_of(app, id_)
    assert before.due_at > before.created_at + bounds.HOUR_MS

    await act(dashboard, "Expedite")
    await expect(state).to_have_text("waiting")
    assert (await job_of(app, id_)).priority == bounds.PRIORITY_MAX

    await dashboard.press("Edit…")
    await dashboard.fill("Payload", '{"to": "b@example.org", "number": 9007199254740993}')
    await expect(dashboard.dialog.locator(".diff-new").first).to_contain_text("b@example.org")
    await dashboard.press("Save")
    await expect(dashboard.page.get_by_label("Payload", exact=True).last).to_contain_text("b@ex")
    assert msgspec.json.decode((await job_of(app, id_)).payload) == {
        "to": "b@example.org",
        "number": 9007199254740993,
    }

    await app.declare(f"{queue}-other", paused=True)
    await dashboard.press("More")
    await dashboard.press("Move…")
    await dashboard.dialog.get_by_label("To queue").select_option(f"{queue}-other")
    await dashboard.press("Move")
    await dashboard.sees(f"main a:has-text('{queue}-other')")
    assert (await job_of(app, id_)).queue == f"{queue}-other"

    await act(dashboard, "Cancel", Reason="sent by hand")
    await expect(state).to_have_text("cancelled")
    await expect(dashboard.page.locator(".timeline")).to_contain_text("sent by hand")
    assert (await job_of(app, id_)).state is State.CANCELLED

    await act(dashboard, "Put back")
    await expect(state).to_have_text("waiting")
    assert (await job_of(app, id_)).state is State.WAITING

    await dashboard.press("More")
    await act(dashboard, "Delete")
    await dashboard.sees("text=This job was deleted.")
    assert await app.get(id_) is None


@one_store
async def test_a_dead_letter_is_edited_and_put_back(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    id_ = (await app.enqueue("shop.charge", {"cents": "9"}, queue=queue)).id
    [lease] = await app.lease(queue, worker="worker-1")
    failure = sample_data.failed("cents is text", "TypeError")
    await app.settle([Settlement(lease=lease, verdict=Bury(Reason.ATTEMPTS, failure))])
    await dashboard.go(f"#/jobs/{id_}", shows="text=Edit and put back…")
    await expect(dashboard.page.get_by_label("Attempts side by side")).to_contain_text(
        "TypeError: cents is text"
    )
    await dashboard.press("Edit and put back…")
    await dashboard.fill("Payload", '{"cents": 9')
    save = dashboard.dialog.get_by_role("button", name="put back")
    await expect(dashboard.dialog.locator(".field-error")).to_contain_text("not JSON")
    await expect(save).to_be_disabled()
    await dashboard.fill("Payload", '{"cents": 9}')
    await save.click()
    await expect(dashboard.page.locator(".job-state")).to_have_text("waiting")
    job = await job_of(app, id_)
    assert (job.state, job.payload, job.redrives) == (State.WAITING, b'{"cents":9}', 1)


@one_store
async def test_the_output_of_a_running_job_is_followed_and_it_is_asked_to_stop(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    id_ = (await app.enqueue("media.transcode", {}, queue=queue)).id
    [lease] = await app.lease(queue, lease="1h", worker="worker-1")
    await dashboard.go(f"#/jobs/{id_}", shows=".output")
    await _write(app, Renewal(lease=lease, lease_ms=bounds.HOUR_MS, note=Note(output=b"frame=1\n")))
    output = dashboard.page.get_by_label("Output", exact=True)
    await expect(output).to_contain_text("frame=1")
    await _write(app, Renewal(lease=lease, lease_ms=bounds.HOUR_MS, note=Note(output=b"frame=2\n")))
    await expect(output).to_contain_text("frame=2")
    await act(dashboard, "Cancel")
    await dashboard.sees("text=asked to stop")
    assert (await job_of(app, id_)).cancel_requested


async def _write(app: Holdfast, renewal: Renewal) -> None:
    await app.renew_many([renewal])


@one_store
async def test_a_page_that_was_left_is_garbage(dashboard: Viewer) -> None:
    """A job may have megabytes of errors: nothing of its page may stay."""
    await dashboard.go(f"#/jobs/{sample_data.DEAD}", shows=".job-line")
    await dashboard.loaded()
    await dashboard.page.evaluate(
        "() => { window.left = new WeakRef(document.querySelector('.job-line')) }"
    )
    await dashboard.go("#/settings", shows="main h1:has-text('Settings')")
    await dashboard.loaded()
    session = await dashboard.context.new_cdp_session(dashboard.page)
    # An effect that has not run yet, or a request that has not ended, may hold it for a moment.
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while await dashboard.page.evaluate("() => window.left.deref() !== undefined"):
            await session.send("HeapProfiler.collectGarbage")
    await session.detach()


async def copied(viewer: Viewer, label: str) -> str:
    """The text that this button copies."""
    await viewer.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await viewer.page.get_by_role("button", name=label).first.click()
    await expect(viewer.page.get_by_text("Copied").first).to_be_visible()
    return str(await viewer.page.evaluate("() => navigator.clipboard.readText()"))


def output_of(line: list[str], folder: Path, **variables: str) -> bytes:
    """Start a program as a person does, and return its output."""
    ran = subprocess.run(
        line, cwd=folder, env=environment(**variables), capture_output=True, check=True
    )
    return ran.stdout


def pasted(line: str, folder: Path, **variables: str) -> bytes:
    """The answer to a copied curl command, with the words that a shell makes of it."""
    words = output_of(["sh", "-c", f"printf '%s\\0' {line}"], folder, **variables)
    name, *arguments = words.decode().split("\0")[:-1]
    assert name == "curl"
    return curl(arguments, "http://127.0.0.1:7433", None).encode()


@one_store
async def test_what_is_copied_can_be_pasted(dashboard: Viewer, site: Site, tmp_path: Path) -> None:
    await dashboard.go(f"#/jobs/{sample_data.DEAD}", shows="text=Edit and put back…")
    await dashboard.page.locator(".page-head").get_by_role("button", name="Copy").click()
    line = await copied(dashboard, "Copy as curl")
    # Without a token, as the browser itself.
    shown = pasted(line, tmp_path)
    assert msgspec.json.decode(shown)["id"] == sample_data.DEAD
    words = shlex.split(await copied(dashboard, "Copy as command"))
    assert words[:3] == ["holdfast", "job", "show"]
    run = [*command(*words[1:], "--json")]
    shown = output_of(run, tmp_path, HOLDFAST_URL=site.store)
    assert msgspec.json.decode(shown)["id"] == sample_data.DEAD


@one_store
async def test_who_signed_in_copies_a_call_that_needs_a_token(
    viewer: Viewer, guarded: Site, app: Holdfast, tmp_path: Path
) -> None:
    viewer.allow("status of 401 .*/v1/session")
    token = await new_token(app, "observe")
    await sign_in(viewer, guarded.url, token)
    await viewer.sees("main h1")
    await viewer.go(f"#/jobs/{sample_data.DEAD}", shows=".job-line")
    await viewer.page.locator(".page-head").get_by_role("button", name="Copy").click()
    line = await copied(viewer, "Copy as curl")
    assert token not in line
    shown = pasted(line, tmp_path, HOLDFAST_TOKEN=token)
    assert msgspec.json.decode(shown)["id"] == sample_data.DEAD


@one_store
async def test_a_reason_to_wait_has_a_button_for_its_remedy(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    await app.declare(queue, paused=True)
    id_ = (await app.enqueue("mail.send", {}, queue=queue)).id
    await dashboard.go(f"#/jobs/{id_}", shows=f"text=Queue {queue} was paused")
    await dashboard.press("Resume the queue")
    await expect(dashboard.page.get_by_text(f"Queue {queue} was paused")).to_have_count(0)
    [view] = await app.queues(names=[queue])
    assert not view.queue.paused


@one_store
async def test_what_others_changed_is_not_changed_back(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    id_ = (await app.enqueue("mail.send", {"to": "a@example.org"}, queue=queue)).id
    await dashboard.go(f"#/jobs/{id_}", shows="text=Expedite…")
    await dashboard.press("Edit…")
    priority = dashboard.dialog.get_by_label("Priority")
    await priority.fill("")
    await expect(dashboard.dialog.get_by_text("Nothing changes.")).to_be_visible()
    await priority.fill("0")
    await app.amend(JobFilter(ids=(id_,)), Edit(by="ana", priority=7))
    await expect(dashboard.page.locator(".timeline")).to_contain_text("Edited")
    await dashboard.fill("Labels to set", "region=eu")
    await dashboard.press("Save")
    await expect(dashboard.dialog).to_have_count(0)
    job = await job_of(app, id_)
    assert (job.priority, job.labels) == (7, {"region": "eu"})


@one_store
async def test_a_graph_has_up_to_200_jobs(dashboard: Viewer, app: Holdfast, queue: str) -> None:
    parent = (await app.enqueue("mail.collect", {}, queue=queue)).id
    children = [app.job("mail.send", n, queue=queue, after=[parent]) for n in range(250)]
    receipts = await app.enqueue_many(children)
    last = app.job("mail.report", {}, queue=queue, after=[each.id for each in receipts[:100]])
    await app.enqueue_many([last])
    await dashboard.go(f"#/jobs/{parent}", shows=".family")
    family = dashboard.page.locator(".family")
    await expect(family.locator(".family-node")).to_have_count(200)
    await expect(dashboard.page.get_by_text("There may be more")).to_be_visible()
    assert await dashboard.overflow() == 0
    await family.get_by_role("link").last.click()
    await expect(dashboard.page.locator(".job-name")).not_to_have_text(parent)
    await expect(dashboard.page.locator(".job-state")).to_have_text("waiting")
