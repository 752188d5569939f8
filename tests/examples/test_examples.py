"""Every example is run as its docstring says, by a real worker, and does what it says."""

import hashlib
import hmac
import json
import re
import struct
import zlib
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from holdfast import Job
from holdfast.core.model import State
from tests.examples.programs import EXAMPLES, Example
from tests.examples.servers import Answer, HttpServer, MailServer, Request, serving
from tests.sources import ROOT
from tests.wait import wait_until

PAGE = (ROOT / "docs" / "examples.md").read_text()
LINES_MAX = 115
SECRET = "a secret of enough characters"

Start = Callable[[str], Example]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return lambda name: Example(name, tmp_path)


def states(jobs: list[Job]) -> dict[State, int]:
    return {state: sum(job.state is state for job in jobs) for state in {job.state for job in jobs}}


def leased_at(job: Job) -> int:
    """When the job was leased for the last time, by the clock of the store."""
    assert job.leased_at is not None
    return job.leased_at


def test_the_page_lists_every_example_with_its_commands() -> None:
    paths = sorted(EXAMPLES.glob("*.py"))
    assert re.findall(r"\]\(\.\./examples/(\w+\.py)\)", PAGE) == [path.name for path in paths]
    for path in paths:
        text = path.read_text()
        shown = re.findall(r"^    ((?:python|holdfast|openssl) .*)$", text, re.MULTILINE)
        assert len(text.splitlines()) <= LINES_MAX
        assert len(shown) >= 2
        assert not [line for line in shown if line not in PAGE], path.name


def test_mail(start: Start) -> None:
    """Once for each address, in spite of a second start of the program and a busy server."""
    mail = start("mail")
    server = MailServer({"bob@example.org": ["451 busy", "250 ok"], "x@example.org": ["550 no"]})
    mail.variables["SMTP_SERVER"] = server.address
    people = ["ada@example.org", "bob@example.org", "x@example.org"]
    enqueued = mail.run(*people)
    assert [line.split(" as ")[0] for line in enqueued] == [f"{to} is enqueued" for to in people]
    assert mail.run(*people) == [f"{to} was enqueued before" for to in people]
    with serving(server), mail.worker():
        ada, bob, x = mail.wait()
    sent = {each["To"]: each["Message-ID"] for each in server.mails}
    assert sent == {
        "ada@example.org": f"<{ada.id}@example.org>",
        "bob@example.org": f"<{bob.id}@example.org>",
    }
    assert len(server.mails) == 2
    assert (ada.attempt, bob.attempt, x.attempt) == (1, 2, 1)
    assert (bob.state, x.state) == (State.DONE, State.DEAD)
    failure = x.failures[-1].failure
    assert failure is not None
    assert failure.message == "x@example.org is refused: 550 no"


def filtered_png(rows: list[bytes], step: int) -> bytes:
    """A PNG file of RGB pixels in which each kind of filter occurs."""

    def paeth(left: int, up: int, corner: int) -> int:
        near = [abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)]
        return (left, up, corner)[near.index(min(near))]

    data = b""
    for number, row in enumerate(rows):
        above = rows[number - 1] if number else bytes(len(row))
        kind = number % 5
        data += bytes([kind])
        for at, value in enumerate(row):
            left = row[at - step] if at >= step else 0
            corner = above[at - step] if at >= step else 0
            up = above[at]
            guess = (0, left, up, (left + up) // 2, paeth(left, up, corner))[kind]
            data += bytes([(value - guess) % 256])

    def part(kind: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    header = struct.pack(">IIBBBBB", len(rows[0]) // step, len(rows), 8, 2, 0, 0, 0)
    packed = zlib.compress(data)
    # Programs split the pixels into several parts.
    pixels = part(b"IDAT", packed[:50]) + part(b"IDAT", packed[50:])
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + pixels + part(b"IEND", b"")


def test_thumbnails(start: Start) -> None:
    thumbnails = start("thumbnails")
    # Squares of two by two equal pixels: their average is the pixel itself.
    pixels = [[(7 * x % 256, 11 * y % 256, x * y % 256) for x in range(64)] for y in range(10)]
    small = [b"".join(map(bytes, row)) for row in pixels]
    rows = [b"".join(bytes(pixel) * 2 for pixel in pixels[y // 2]) for y in range(20)]
    (thumbnails.folder / "sea.png").write_bytes(filtered_png(rows, 3))
    (thumbnails.folder / "cut.png").write_bytes(filtered_png(rows, 3)[:200])
    (thumbnails.folder / "text.png").write_text("no picture")
    [line] = thumbnails.run("sea.png", "cut.png", "text.png", "gone.png")
    assert line.startswith("4 thumbnails are enqueued; the page is job ")
    with thumbnails.worker():
        sea, *broken, gallery = thumbnails.wait()
    assert json.loads(sea.result or b"") == {
        "path": "thumbnails/sea.png",
        "width": 64,
        "height": 10,
    }
    made = (thumbnails.folder / "thumbnails" / "sea.png").read_bytes()
    start_at = made.index(b"IDAT")
    [length] = struct.unpack_from(">I", made, start_at - 4)
    data = zlib.decompress(made[start_at + 4 : start_at + 4 + length])
    assert data == b"".join(b"\0" + row for row in small)
    assert states(broken) == {State.DEAD: 3}
    assert [job.attempt for job in broken] == [1, 1, 1]
    assert (gallery.state, gallery.result) == (State.DONE, b"1")
    assert (thumbnails.folder / "thumbnails" / "index.html").read_text() == '<img src="sea.png">'


def test_nightly_report(start: Start) -> None:
    nightly = start("nightly_report")
    today = datetime.now(ZoneInfo("Europe/Berlin")).date()
    orders = [
        ("2026-05-01", "tea", "4.50"),
        ("2026-05-01", "tea", "4.50"),
        ("2026-05-01", "cup", "9"),
    ]
    # The test may run at midnight: yesterday may be another day when the report is written.
    orders += [(str(today - timedelta(days=days)), "jam", "3.20") for days in (0, 1)]
    lines = [",".join(order) for order in [("day", "product", "price"), *orders]]
    (nightly.folder / "orders.csv").write_text("\n".join(lines))
    with nightly.worker():
        assert nightly.run("2026-05-01") == [
            "01 May 2026: 3 orders, 18.00 EUR, mostly tea",
            "see reports/2026-05-01.txt",
        ]
        [schedule] = nightly.command("schedule", "list")
        assert (schedule["name"], schedule["program"]) == ("nightly", "nightly_report")
        assert schedule["words"] == "At 02:00 every day (Europe/Berlin)"
        nightly.command("schedule", "run", "nightly")
        asked, ticked = nightly.wait()
    report = json.loads(ticked.result or b"")
    assert (report["orders"], Decimal(report["revenue"]), report["best"]) == (
        1,
        Decimal("3.20"),
        "jam",
    )
    text = f"{report['day']}: 1 orders, 3.20 EUR\n"
    assert (nightly.folder / report["file"]).read_text() == text
    assert asked.task == ticked.task == "nightly_report:report"


def test_webhook_fanout(start: Start) -> None:
    """A busy receiver gets the event later, and one that is down keeps nobody waiting."""
    fanout = start("webhook_fanout")
    refusals = [Answer(503, headers={"Retry-After": "0"})] * 2
    steady = HttpServer(lambda _: Answer())
    busy = HttpServer(lambda _: refusals.pop() if refusals else Answer())
    down = HttpServer(lambda _: Answer(503, headers={"Retry-After": "1"}))
    urls = [f"{server.url}/in" for server in (steady, busy, down)]
    (fanout.folder / "subscribers.txt").write_text("\n".join(urls))
    (fanout.folder / "secrets").write_text(f"{SECRET}\n")
    event = ["order-42", "order.paid", '{"total": "9.90"}']
    assert fanout.run(*event)[0].startswith("order-42 is announced by job ")
    assert fanout.run(*event) == ["order-42 was announced before"]
    flags = ["--webhooks", "--webhook-secrets", "secrets", "--webhook-allow", "127.0.0.0/8"]
    breaker = ["--webhook-breaker", "3 failures, 1h"]
    with serving(steady, busy, down), fanout.worker(*flags, *breaker):
        wait_until(lambda: len(steady.requests) == 1 and len(busy.requests) == 3)
        # The host that was busy may be listed, too, for a moment: its breaker is closed.
        wait_until(lambda: "open" in {each["state"] for each in fanout.command("breaker", "list")})
        states_of = {each["name"]: each["state"] for each in fanout.command("breaker", "list")}
    assert states_of[f"host:{down.url.removeprefix('http://')}"] == "open"
    for server in (steady, busy):
        request = server.requests[-1]
        assert json.loads(request.body) == {
            "id": "order-42",
            "kind": "order.paid",
            "data": {"total": "9.90"},
        }
        assert is_signed(request)
    announced, *deliveries = fanout.jobs()
    assert (announced.state, announced.result) == (State.DONE, b"3")
    assert states(deliveries) == {State.DONE: 2, State.WAITING: 1}


def is_signed(request: Request) -> bool:
    at, _, signature = request.headers["Holdfast-Signature"].removeprefix("t=").partition(",v1=")
    wanted = hmac.new(SECRET.encode(), f"{at}.".encode() + request.body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(wanted, signature)


def test_api_client(start: Start) -> None:
    client = start("api_client")
    refusals = [Answer(429, headers={"Retry-After": "0.2"})]

    def answer(request: Request) -> Answer:
        number = request.path.removeprefix("/products/")
        if number == "3" and refusals:
            return refusals.pop()
        if number == "99":
            return Answer(404)
        return Answer(body=json.dumps({"name": f"tea {number}", "price": f"{number}.50"}).encode())

    server = HttpServer(answer)
    client.variables["API"] = server.url
    ids = [str(number) for number in range(1, 8)]
    with serving(server), client.worker("--prefetch", "0"):
        *printed, unknown = client.run(*ids, "99")
        jobs = client.wait()
    assert printed == [f"{each}: tea {each}, {each}.50 EUR" for each in ids]
    assert unknown.endswith("there is no product 99")
    assert len(server.requests) == 9
    assert server.most <= 2
    assert {job.attempt for job in jobs} == {1}, "a pause that the API asks for is no attempt"
    # Ten a second, evenly spaced.
    leased = sorted(map(leased_at, jobs))
    assert leased[-1] - leased[0] >= 7 * 100


def test_multi_tenant(start: Start) -> None:
    tenants = start("multi_tenant")
    accounts = tenants.folder / "accounts"
    # No booking of this account can be written for now.
    blocked = accounts / "acme-blocked.txt"
    blocked.mkdir(parents=True)
    assert tenants.run("acme", "blocked", "100", "-30", "-70") == [
        "3 bookings are enqueued for acme"
    ]
    tenants.run("acme", "main", "50", *["-1"] * 50)
    tenants.run("beta", "main", "5", "-5")
    with tenants.worker("--concurrency", "1", "--prefetch", "0"):
        wait_until(lambda: balance(accounts / "acme-main.txt") == 0)
        wait_until(lambda: tenants.jobs()[0].failures)
        blocked.rmdir()
        jobs = tenants.wait()
    assert states(jobs) == {State.DONE: 56}
    assert [line.split()[1:] for line in blocked.read_text().splitlines()] == [
        ["+100", "100"],
        ["-30", "70"],
        ["-70", "0"],
    ]
    # Enqueued last, they waited for a few bookings of acme, and not for all of them.
    beta = [leased_at(job) for job in jobs if job.tenant == "beta"]
    acme = [leased_at(job) for job in jobs if job.group == "acme/main"]
    assert sum(at < beta[0] for at in acme) <= 3
    assert sum(at < beta[1] for at in acme) <= 6
    assert balance(accounts / "beta-main.txt") == 0


def balance(statement: Path) -> int | None:
    return int(statement.read_text().split()[-1]) if statement.is_file() else None
