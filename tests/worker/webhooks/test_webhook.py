"""The task `webhook`: requests, signatures, and the ending of the job for each response."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core import bounds
from holdfast.core.breaker import KIND
from holdfast.core.model import WEBHOOK_TASK, FailureKind, Reason, State
from holdfast.errors import ConfigError
from holdfast.notation.policies import to_breaker
from holdfast.worker.child.attempt import Attempt
from holdfast.worker.options import WorkerOptions
from holdfast.worker.webhooks.client import Secrets, signature
from holdfast.worker.webhooks.webhook import host_of, webhook_handler, webhook_setup
from holdfast.worker.wire import (
    AskedBury,
    AskedRetry,
    CallJob,
    Ending,
    Raised,
    Returned,
    WebhookSetup,
)
from tests.worker.live_workers import Place, until
from tests.worker.webhook_receiver import Receiver, receiving

NOW = 1_700_000_000
OLD, NEW = "an old secret of the tests", "a new secret of the tests"


def secrets_file(folder: Path, *secrets: str) -> str:
    path = folder / "secrets"
    path.write_text("# webhooks\n\n" + "\n".join(secrets or (NEW,)) + "\n")
    return str(path)


async def run(folder: Path, payload: Any, *secrets: str) -> Ending:
    """One attempt, as the child makes it."""
    setup = WebhookSetup(secrets_file=secrets_file(folder, *secrets), allow=("127.0.0.1/32",))
    handler = webhook_handler(setup, lambda: NOW)
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    given = CallJob("job-1", "default", raw, "application/json", 2, 7, 0)
    [ending] = await Attempt(handler, (given,)).run_async()
    return ending


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {code} Whatever", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def answered(folder: Path, answer: bytes) -> Ending:
    async with receiving() as receiver:
        receiver.answer = answer
        return await run(folder, {"url": f"http://127.0.0.1:{receiver.port}/"})


async def test_request_and_result(tmp_path: Path) -> None:
    async with receiving() as receiver:
        payload = {
            "url": f"http://127.0.0.1:{receiver.port}/in?token=1",
            "headers": {"X-Shop": "acme"},
            "body": {"order": 42, "name": "Ådå"},
        }
        ending = await run(tmp_path, payload, NEW, OLD)
    assert isinstance(ending, Returned)
    result = json.loads(ending.result or b"")
    assert (result["status"], result["body"]) == (200, "ok")
    assert result["duration_ms"] >= 0
    [got] = receiver.got
    assert got.line == "POST /in?token=1 HTTP/1.1"
    assert json.loads(got.body) == payload["body"]
    assert got.headers["content-type"] == "application/json"
    assert (got.headers["holdfast-job-id"], got.headers["holdfast-attempt"]) == ("job-1", "2")
    assert got.headers["x-shop"] == "acme"
    signed = f"{NOW}.".encode() + got.body
    made = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in (NEW, OLD)]
    assert got.headers["holdfast-signature"] == f"t={NOW},v1={made[0]},v1={made[1]}"


async def test_a_text_body_is_sent_as_it_is(tmp_path: Path) -> None:
    async with receiving() as receiver:
        url = f"http://127.0.0.1:{receiver.port}"
        await run(tmp_path, {"url": url, "body": "a=1", "headers": {"content-type": "text/x"}})
        await run(tmp_path, {"url": url, "body": "a=1"})
        await run(tmp_path, {"url": url, "method": "DELETE"})
        await run(tmp_path, {"url": url, "body": None})
    sent = [(got.body, got.headers.get("content-type")) for got in receiver.got]
    assert sent == [
        (b"a=1", "text/x"),
        (b"a=1", "text/plain; charset=utf-8"),
        (b"", None),
        (b"null", "application/json"),
    ]
    assert receiver.got[2].line == "DELETE / HTTP/1.1"


@pytest.mark.parametrize("code", [200, 201, 202, 299])
async def test_2xx_is_done(tmp_path: Path, code: int) -> None:
    assert isinstance(await answered(tmp_path, status(code)), Returned)


@pytest.mark.parametrize(
    ("code", "type_name"),
    [
        (400, "HttpRefused"), (401, "HttpRefused"), (404, "HttpRefused"), (422, "HttpRefused"),
        (408, "HttpStatus"), (425, "HttpStatus"), (429, "HttpStatus"), (500, "HttpStatus"),
        (503, "HttpStatus"), (599, "HttpStatus"), (301, "HttpRefused"), (307, "HttpRefused"),
    ],
)  # fmt: skip
async def test_other_answers_are_failed_attempts(tmp_path: Path, code: int, type_name: str) -> None:
    ending = await answered(tmp_path, status(code, body=b"no\x1b[31m way"))
    assert isinstance(ending, Raised)
    assert (ending.fatal, ending.failure.type) == (False, type_name)
    assert ending.failure.message.startswith(f"HTTP {code}: no\\x1b[31m way")


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with receiving() as inside, receiving() as receiver:
        receiver.answer = status(302, f"Location: http://127.0.0.1:{inside.port}/")
        ending = await run(tmp_path, {"url": f"http://127.0.0.1:{receiver.port}/"})
        assert inside.connections == 0
    assert isinstance(ending, Raised)
    assert "redirects are not followed" in ending.failure.message


async def test_status_410_buries_the_job(tmp_path: Path) -> None:
    ending = await answered(tmp_path, status(410))
    assert isinstance(ending, AskedBury)


@pytest.mark.parametrize(
    ("code", "after", "delay_ms"),
    [
        (429, "7", 7_000),
        (503, "120", 120_000),
        (503, "Tue, 14 Nov 2023 22:14:20 GMT", 60_000),
        (503, "Tue, 14 Nov 2000 22:14:20 GMT", 0),
        (429, "999999999", bounds.HOUR_MS),
    ],
)
async def test_retry_after_is_respected(
    tmp_path: Path, code: int, after: str, delay_ms: int
) -> None:
    ending = await answered(tmp_path, status(code, f"Retry-After: {after}"))
    assert isinstance(ending, AskedRetry)
    assert ending.delay_ms == delay_ms


@pytest.mark.parametrize(
    "after",
    [
        *("", "soon", "-1", "٣", "Tue, 99 Nov 2023 22:14:20 GMT"),
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
        "Mon, 99999999999999999999 Jan 2024 00:00:00 +0000",
    ],
)
async def test_nonsense_in_retry_after_is_ignored(tmp_path: Path, after: str) -> None:
    raw = status(503).replace(b"\r\n\r\n", b"\r\nRetry-After: " + after.encode() + b"\r\n\r\n")
    ending = await answered(tmp_path, raw)
    assert isinstance(ending, Raised)
    assert ending.failure.type == "HttpStatus"


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"null", b"[]", b"{}", b'{"url": 1}', b'{"url": ""}', b'{"url": "ftp://a.example/"}',
        b'{"url": "http://"}', b'{"url": "http://a.example:0/"}', b'{"url": "http://a b/"}',
        b'{"url": "http://a.example:99999/"}', b'{"url": "http://user:hunter2@a.example/"}',
        b'{"url": "http://a.example/a b"}', b'{"url": "http://a.example/\\u00e9"}',
        b'{"url": "http://a.example/\\r\\nX: y"}', b'{"url": "http://a.example", "method": "BREW"}',
        b'{"url": "http://a.example", "timeout": 0}', b'{"url": "http://a.example", "why": 1}',
        b'{"url": "http://a.example", "headers": {"Host": "b"}}',
        b'{"url": "http://a.example", "headers": {"holdfast-job-id": "b"}}',
        b'{"url": "http://a.example", "headers": {"Content-Length": "1"}}',
        b'{"url": "http://a.example", "headers": {"X Y": "b"}}',
        b'{"url": "http://a.example", "headers": {"X": "b\\r\\nY: c"}}',
        b'{"url": "http://[fe80::1%25eth0]/"}', b'{"url": "http://a.example", "body": "\\ud800"}',
        b'{"url": "http://a%00b.example/"}', b'{"url": "http://' + b"a" * 300 + b'.example/"}',
        b'{"url": "http://a.example", "body": ' + b"[" * 2_000 + b"]" * 2_000 + b"}",
        b'{"url": "http://[::1"}', b"[" * 100_000,
    ],
)  # fmt: skip
async def test_a_payload_that_is_no_webhook_gets_no_other_attempt(
    tmp_path: Path, payload: bytes
) -> None:
    ending = await run(tmp_path, payload)
    assert isinstance(ending, Raised)
    assert ending.fatal
    assert "hunter2" not in ending.failure.message
    assert host_of(payload) in ("", "a.example:80")


async def test_an_address_that_is_not_public_gets_no_other_attempt(tmp_path: Path) -> None:
    ending = await run(tmp_path, {"url": "http://127.0.0.2:9/"})
    assert isinstance(ending, Raised)
    assert (ending.fatal, ending.failure.type) == (True, "AddressRefused")
    assert "--webhook-allow" in ending.failure.message


def test_the_host_that_a_breaker_is_for() -> None:
    def of(url: str) -> str:
        return host_of(msgspec.json.encode({"url": url}))

    assert of("https://Hooks.Example/a") == "hooks.example:443"
    assert of("http://hooks.example/a") == "hooks.example:80"
    assert of("http://[2606:4700::1]:8080/a") == "2606:4700::1:8080"
    assert of("https://bücher.example/") == "xn--bcher-kva.example:443"
    assert of("nowhere") == ""


def test_secrets_are_read_again_when_they_change(tmp_path: Path) -> None:
    secrets = Secrets(secrets_file(tmp_path, OLD))
    assert secrets.read() == (OLD.encode(),)
    secrets_file(tmp_path, NEW, OLD)
    assert secrets.read() == (NEW.encode(), OLD.encode())
    (tmp_path / "secrets").unlink()
    assert secrets.read() == (NEW.encode(), OLD.encode()), "it goes on with those it has"


@pytest.mark.parametrize("text", ["", "# none\n", "short\n", "a secret of the tests\n" * 9])
def test_invalid_secrets_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secrets"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Secrets(str(path)).read()
    assert "short\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        Secrets(str(tmp_path / "nowhere")).read()


def test_a_signature_covers_the_time_and_the_body() -> None:
    made = {signature([b"s" * 16], at, body) for at in (1, 2) for body in (b"", b"a")}
    assert len(made) == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "--webhook-secrets"),
        ({"webhook_secrets": "/nowhere"}, "cannot be read"),
        ({"webhook_allow": ("10.0.0.1/8",)}, "--webhook-allow"),
        ({"webhook_ca": "/nowhere"}, "--webhook-ca"),
    ],
)
def test_missing_webhook_options_are_named(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    given = {"webhook_secrets": secrets_file(tmp_path), **options} if options else {}
    with pytest.raises(ConfigError, match=text):
        webhook_setup(WorkerOptions(url="", webhooks=True, **given))


async def hooked(place: Place, receiver: Receiver, *ids: str, **options: Any) -> None:
    payload = {"url": f"http://127.0.0.1:{receiver.port}/", "body": {"a": 1}}
    await place.enqueue(WEBHOOK_TASK, *ids, payload=payload, **options)


def sending(place: Place, **options: Any) -> dict[str, Any]:
    plain = {"target": None, "webhooks": True, "webhook_allow": ("127.0.0.1/32",)}
    return {**plain, "webhook_secrets": secrets_file(place.folder), **options}


async def test_a_real_worker_sends_and_signs(place: Place) -> None:
    async with receiving() as receiver:
        await place.worker(**sending(place))
        await hooked(place, receiver, *(f"j{number}" for number in range(20)))
        jobs = await place.finished(*(f"j{number}" for number in range(20)))
    assert {job.state for job in jobs} == {State.DONE}
    assert {got.headers["holdfast-job-id"] for got in receiver.got} == {job.id for job in jobs}
    everything = place.stderr() + repr(jobs)
    assert NEW not in everything, "the secret stays with the worker"


async def test_a_worker_without_webhooks_sends_nothing(place: Place) -> None:
    async with receiving() as receiver:
        await place.worker()
        await hooked(place, receiver, "j")
        await place.enqueue("note", "after")
        await place.finished("after")
        assert (await place.job("j")).state is State.WAITING
        assert receiver.connections == 0


async def test_a_job_may_hang_and_is_ended_by_its_timeout(place: Place) -> None:
    async with receiving() as receiver:

        async def silent(*_: Any) -> None:
            await until(lambda: False)

        receiver.talk = silent
        await place.worker(**sending(place))
        await hooked(place, receiver, "j", timeout="300ms", max_attempts=1)
        (job,) = await place.finished("j")
    assert (job.state, job.reason) == (State.DEAD, Reason.ATTEMPTS)
    assert job.failures[-1].failure is not None
    assert job.failures[-1].failure.kind is FailureKind.TIMEOUT


async def test_webhooks_run_beside_an_application(place: Place) -> None:
    async with receiving() as receiver:
        await place.worker(**{**sending(place), "target": place.options().target})
        await hooked(place, receiver, "hook")
        await place.enqueue("note", "note")
        jobs = await place.finished("hook", "note")
    assert {job.state for job in jobs} == {State.DONE}


async def test_a_failing_host_is_shut_out_until_it_recovers(place: Place) -> None:
    """Its jobs are released uncharged, and each is delivered in the end."""
    ids = [f"j{number}" for number in range(12)]
    async with receiving() as receiver:
        receiver.answer = status(500)
        breaker = to_breaker("it", "3 failures, 200ms to 400ms")
        await place.worker(**sending(place, webhook_breaker=breaker, concurrency=2))
        retried = {"max_attempts": 50, "backoff": "constant(10ms, jitter=0)"}
        await hooked(place, receiver, *ids, **retried)

        async def opened() -> bool:
            found = await place.app.engine.load(KIND, limit=10)
            return any(b'"open"' in (each.value or b"") for each in found)

        await until(opened, "the breaker to open")
        await until(lambda: receiver.connections >= 8, "some probes")
        receiver.answer = status(200)
        jobs = await place.finished(*ids)
    assert {job.state for job in jobs} == {State.DONE}
    assert sum(job.attempt for job in jobs) == len(receiver.got)
    given_back = [e for job in jobs for e in job.events if "the breaker of host" in e.text]
    assert given_back

    async def forgotten() -> bool:
        return not await place.app.engine.load(KIND, limit=10)

    await until(forgotten, "nothing to be kept of a host that is well")
