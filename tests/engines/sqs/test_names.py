"""Names of queues on SQS can be read back, and are within its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.sqs.names import NAME_MAX, QueueNames, ReadName
from holdfast.errors import ConfigError, InvalidQueue

NAMES = QueueNames("shop-")


@given(st.text("aZ9_.-ud", min_size=1, max_size=20), st.booleans())
def test_every_name_is_written_legally_and_read_back(queue: str, dead: bool) -> None:
    if queue.endswith("-dlq"):
        queue += "x"
    written = NAMES.write(queue, dead=dead)
    assert NAMES.read(written) == ReadName(queue, dead)
    base = written.removesuffix(".fifo")
    assert base.replace("_", "").replace("-", "").isalnum() or set(base) <= set("_-")


@given(st.lists(st.text("a_.-ud", min_size=1, max_size=8), min_size=2, max_size=2, unique=True))
def test_two_names_are_never_one(pair: list[str]) -> None:
    written = {
        NAMES.write(queue, dead=dead)
        for queue in pair
        if not queue.endswith("-dlq")
        for dead in (False, True)
    }
    assert len(written) == 2 * sum(not queue.endswith("-dlq") for queue in pair)


@pytest.mark.parametrize(
    ("queue", "written"),
    [
        ("mail", "shop-mail"),
        ("mail.eu", "shop-mail__eu"),
        ("a_b", "shop-a_b"),
        ("a._b", "shop-a___du_b"),
        ("orders.fifo", "shop-orders.fifo"),
    ],
)
def test_names_stay_legible(queue: str, written: str) -> None:
    assert NAMES.write(queue) == written


def test_dead_letters_of_a_fifo_queue_are_a_fifo_queue() -> None:
    assert NAMES.write("orders.fifo", dead=True) == "shop-orders-dlq.fifo"
    assert NAMES.read("shop-orders-dlq.fifo") == ReadName("orders.fifo", True)


def test_the_longest_name_with_its_dead_letters_is_at_the_bound() -> None:
    longest = "x" * NAMES.length_max
    assert len(NAMES.write(longest, dead=True)) == NAME_MAX
    with pytest.raises(InvalidQueue, match="the maximum is 80"):
        NAMES.write(longest + "x")


@pytest.mark.parametrize("queue", ["mail-dlq", "mail-dlq.fifo"])
def test_a_name_of_dead_letters_is_no_name_of_a_queue(queue: str) -> None:
    with pytest.raises(InvalidQueue, match="dead letters of mail"):
        NAMES.write(queue)


def test_the_ending_of_a_fifo_queue_alone_is_no_name() -> None:
    with pytest.raises(InvalidQueue, match="put a name before it"):
        NAMES.write(".fifo")


@pytest.mark.parametrize("written", ["other", "shop-", "shop-a___b", "shop-a____b", "shop-a.b", ""])
def test_other_queues_are_none_of_ours(written: str) -> None:
    assert NAMES.read(written) is None


def test_a_namespace_has_queues_of_its_own() -> None:
    acme = QueueNames("shop-", "acme")
    assert acme.write("mail") == "shop-acme____mail"
    assert acme.read("shop-acme____mail") == ReadName("mail", False)
    assert acme.read("shop-acme_____mail") == ReadName("_mail", False)
    assert NAMES.read("shop-acme____mail") is None
    assert QueueNames("shop-", "ac").read("shop-acme____mail") is None


@pytest.mark.parametrize(
    ("prefix", "namespace"), [("a.b", "default"), ("x" * 61, "default"), ("", "a_b")]
)
def test_prefixes_and_namespaces_that_no_name_can_have(prefix: str, namespace: str) -> None:
    with pytest.raises(ConfigError):
        QueueNames(prefix, namespace)
