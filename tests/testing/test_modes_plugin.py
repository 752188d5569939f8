"""The pytest plugin, in a pytest of its own, as a user's project would run it."""

import os
import subprocess
import sys
from pathlib import Path

SUITE = """
import sys

def test_nothing_is_imported_before_a_fixture_is_used():
    assert "holdfast.app.application" not in sys.modules
    assert "apsw" not in sys.modules

def test_inline(holdfast_inline):
    from shop import double
    assert double.enqueue(4).result() == 8

def test_manual(holdfast_manual):
    from shop import double
    handle = double.enqueue(4)
    assert holdfast_manual.drain().done == 1
    assert handle.result() == 8

def test_fake(holdfast_fake):
    from shop import double
    double.enqueue(4)
    holdfast_fake.assert_enqueued(double, 4, times=1)

def test_sqs(holdfast_sqs):
    import boto3
    url = holdfast_sqs.create_queue(QueueName="mail")["QueueUrl"]
    # The code under test creates its own client.
    boto3.client("sqs").send_message(QueueUrl=url, MessageBody="hello")
    [message] = holdfast_sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    assert message["Body"] == "hello"

def test_sqs_starts_without_queues(holdfast_sqs):
    assert "QueueUrls" not in holdfast_sqs.list_queues()
"""

SHOP = """
from holdfast import Holdfast
app = Holdfast()

@app.task
def double(number: int) -> int:
    return 2 * number
"""

CONFTEST = """
import pytest

@pytest.fixture
def holdfast_app():
    from shop import app
    return app
"""


def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_shop.py").write_text(SUITE)
    # Bytecode is where the other tests have theirs: compiling takes longer than the tests.
    bytecode = {name: os.environ[name] for name in ("PYTHONPYCACHEPREFIX",) if name in os.environ}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), **bytecode},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "6 passed" in ran.stdout
    assert not (tmp_path / "holdfast.db").exists()
