"""Queue attributes: every range, what a type of queue allows, comparison, and policies."""

import json

import msgspec
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from holdfast.server.sqs.errors import SqsError
from holdfast.server.sqs.queue_attributes import (
    ATTRIBUTE_NAMES,
    QueueArn,
    QueueAttributes,
    RedriveAllowPolicy,
    RedrivePolicy,
    attributes_for_create,
    changed_attributes,
    check_dead_letter_target,
    check_queue_name,
    first_difference,
    parse_arn,
    selected_attributes,
    shown_attributes,
)
from tests.server.sqs.service_model import service_model

STANDARD = QueueAttributes()
FIFO = QueueAttributes(fifo_queue=True)
SOURCE = QueueArn("us-east-1", "000000000000", "tasks")
DEAD = QueueArn("us-east-1", "000000000000", "dead")
RANGES = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1_024, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}


def refusal(current: QueueAttributes, **given: str) -> SqsError:
    with pytest.raises(SqsError) as caught:
        changed_attributes(current, given)
    return caught.value


def redrive(count: object, arn: object = str(DEAD)) -> str:
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": count})


def test_the_names_are_those_of_the_model() -> None:
    assert set(service_model().shape_for("QueueAttributeName").enum) == ATTRIBUTE_NAMES


def test_defaults() -> None:
    assert shown_attributes(attributes_for_create("tasks", {})) == {
        "VisibilityTimeout": "30",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "DelaySeconds": "0",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
    }


def test_defaults_of_a_fifo_queue() -> None:
    fifo = shown_attributes(attributes_for_create("tasks.fifo", {"FifoQueue": "True"}))
    assert set(fifo) - set(shown_attributes(STANDARD)) == {
        "FifoQueue",
        "ContentBasedDeduplication",
        "DeduplicationScope",
        "FifoThroughputLimit",
    }
    assert fifo["FifoQueue"] == "true"
    assert fifo["ContentBasedDeduplication"] == "false"
    assert fifo["DeduplicationScope"] == "queue"
    assert fifo["FifoThroughputLimit"] == "perQueue"


@pytest.mark.parametrize("name", RANGES)
def test_values_out_of_range_are_refused(name: str) -> None:
    least, most = RANGES[name]
    for value in (least, most):
        changed = changed_attributes(STANDARD, {name: str(value)})
        assert shown_attributes(changed)[name] == str(value)
    for text in (str(least - 1), str(most + 1), "", " 60", "60.0", "abc", "6e1", "٦٠", "9" * 5_000):
        error = refusal(STANDARD, **{name: text})
        assert error.shape == "InvalidAttributeValue"
        assert error.message == f"Invalid value for the parameter {name}."


@pytest.mark.parametrize("name", ["SqsManagedSseEnabled", "ContentBasedDeduplication"])
def test_booleans_in_any_case(name: str) -> None:
    for text in ("true", "True", "TRUE"):
        assert shown_attributes(changed_attributes(FIFO, {name: text}))[name] == "true"
    assert shown_attributes(changed_attributes(FIFO, {name: "False"}))[name] == "false"
    assert refusal(FIFO, **{name: "1"}).message == f"Invalid value for the parameter {name}."


@pytest.mark.parametrize(
    "name", ["All", "QueueArn", "CreatedTimestamp", "ApproximateNumberOfMessages", "x", ""]
)
def test_unknown_and_read_only_names(name: str) -> None:
    error = refusal(STANDARD, **{name: "1"})
    assert (error.shape, error.message) == ("InvalidAttributeName", f"Unknown Attribute {name}.")


@pytest.mark.parametrize("name", ["DeduplicationScope", "FifoThroughputLimit"])
def test_attributes_of_fifo_queues_alone(name: str) -> None:
    error = refusal(STANDARD, **{name: "queue"})
    assert error.shape == "InvalidAttributeName"
    assert error.message == f"You can specify the {name} only when FifoQueue is set to true."
    assert refusal(FIFO, **{name: "other"}).shape == "InvalidAttributeValue"


def test_deduplication_by_content_is_unknown_to_a_standard_queue() -> None:
    error = refusal(STANDARD, ContentBasedDeduplication="true")
    assert error.message == "Unknown Attribute ContentBasedDeduplication."


def test_the_type_of_a_queue_never_changes() -> None:
    assert refusal(STANDARD, FifoQueue="true").message == "Unknown Attribute FifoQueue."
    assert refusal(FIFO, FifoQueue="false").message == (
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    )
    assert changed_attributes(FIFO, {"FifoQueue": "true"}) == FIFO


def test_a_standard_queue_is_not_created_by_false() -> None:
    with pytest.raises(SqsError, match=r"^Unknown Attribute FifoQueue\.$"):
        attributes_for_create("tasks", {"FifoQueue": "false"})


def test_a_limit_per_group_needs_deduplication_per_group() -> None:
    assert refusal(FIFO, FifoThroughputLimit="perMessageGroupId").shape == "InvalidAttributeValue"
    scoped = changed_attributes(FIFO, {"DeduplicationScope": "messageGroup"})
    fast = changed_attributes(scoped, {"FifoThroughputLimit": "perMessageGroupId"})
    assert fast.fifo_throughput_limit == "perMessageGroupId"
    assert refusal(fast, DeduplicationScope="queue").shape == "InvalidAttributeValue"


@pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 80])
def test_valid_names(name: str) -> None:
    check_queue_name(name, fifo=False)


@pytest.mark.parametrize(
    "name", ["", "x" * 81, "a.b", "a b", "a/b", "tasks.fifo", "ü", "a\n", "a\x00"]
)
def test_invalid_names(name: str) -> None:
    with pytest.raises(SqsError) as caught:
        attributes_for_create(name, {})
    assert caught.value.code == "InvalidParameterValue"


@pytest.mark.parametrize("name", [".fifo", "tasks", "a.b.fifo", "x" * 76 + ".fifo", "a.FIFO"])
def test_invalid_names_of_fifo_queues(name: str) -> None:
    with pytest.raises(SqsError, match=r"must end with \.fifo suffix"):
        attributes_for_create(name, {"FifoQueue": "true"})
    check_queue_name("x" * 75 + ".fifo", fifo=True)


def test_creating_a_queue_again() -> None:
    current = attributes_for_create("tasks", {"DelaySeconds": "5"})
    for same in ({}, {"DelaySeconds": "5"}, {"DelaySeconds": "05"}, {"VisibilityTimeout": "30"}):
        assert first_difference(current, same) is None
    given = {"VisibilityTimeout": "30", "DelaySeconds": "6"}
    assert first_difference(current, given) == "DelaySeconds"
    assert first_difference(current, {"FifoQueue": "true"}) == "FifoQueue"
    assert first_difference(FIFO, {"FifoQueue": "true"}) is None
    assert first_difference(FIFO, {}) is None


def test_creating_a_queue_again_with_equal_policies() -> None:
    current = changed_attributes(STANDARD, {"RedrivePolicy": redrive(3)})
    assert first_difference(current, {"RedrivePolicy": redrive("3")}) is None
    assert first_difference(current, {"RedrivePolicy": redrive(4)}) == "RedrivePolicy"
    assert first_difference(current, {"RedrivePolicy": ""}) == "RedrivePolicy"
    assert first_difference(STANDARD, {"RedrivePolicy": "", "KmsMasterKeyId": ""}) is None


def test_an_invalid_attribute_is_refused_also_if_the_queue_exists() -> None:
    with pytest.raises(SqsError, match="Unknown Attribute"):
        first_difference(STANDARD, {"x": "1"})


def test_one_kind_of_encryption() -> None:
    keyed = changed_attributes(STANDARD, {"KmsMasterKeyId": "alias/a"})
    shown = shown_attributes(keyed)
    assert shown["SqsManagedSseEnabled"] == "false"
    assert shown["KmsMasterKeyId"] == "alias/a"
    assert shown["KmsDataKeyReusePeriodSeconds"] == "300"
    assert first_difference(keyed, {"KmsDataKeyReusePeriodSeconds": "300"}) is None
    back = shown_attributes(changed_attributes(keyed, {"SqsManagedSseEnabled": "true"}))
    assert back == shown_attributes(STANDARD)
    error = refusal(STANDARD, KmsMasterKeyId="a", SqsManagedSseEnabled="true")
    assert error.shape == "InvalidAttributeName"
    both = {"KmsMasterKeyId": "a", "SqsManagedSseEnabled": "false"}
    assert shown_attributes(changed_attributes(STANDARD, both))["KmsMasterKeyId"] == "a"


def test_an_empty_key_removes_key_and_period() -> None:
    given = {"KmsMasterKeyId": "a", "KmsDataKeyReusePeriodSeconds": "600"}
    removed = changed_attributes(changed_attributes(STANDARD, given), {"KmsMasterKeyId": ""})
    assert not {"KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds"} & set(shown_attributes(removed))


def test_a_policy_is_json_and_empty_text_removes_it() -> None:
    kept = changed_attributes(STANDARD, {"Policy": '{"Version": "2008-10-17"}'})
    assert shown_attributes(kept)["Policy"] == '{"Version": "2008-10-17"}'
    assert changed_attributes(kept, {"Policy": ""}) == STANDARD
    long = json.dumps({"a": "x" * 8_192})
    for text in ("x", "[]", "1", "null", long, '{"a":"' + "é" * 4_096 + '"}', "[" * 8_000):
        assert refusal(STANDARD, Policy=text).message == "Invalid value for the parameter Policy."


@pytest.mark.parametrize("count", [1, 1_000, "1", "1000", "007"], ids=repr)
def test_a_redrive_policy_takes_a_number_or_its_text(count: int | str) -> None:
    changed = changed_attributes(STANDARD, {"RedrivePolicy": redrive(count)})
    assert changed.redrive_policy == RedrivePolicy(
        dead_letter_target_arn=str(DEAD), max_receive_count=int(count)
    )
    shown = json.loads(shown_attributes(changed)["RedrivePolicy"])
    assert shown == {"deadLetterTargetArn": str(DEAD), "maxReceiveCount": int(count)}
    assert changed_attributes(changed, {"RedrivePolicy": ""}) == STANDARD


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (redrive(0), "Invalid value for maxReceiveCount: 0,"),
        (redrive(1_001), "Invalid value for maxReceiveCount: 1001,"),
        (redrive(True), "Invalid value for maxReceiveCount"),
        (redrive(1.5), "Invalid value for maxReceiveCount"),
        (redrive("-1"), "Invalid value for maxReceiveCount"),
        (redrive([]), "Invalid value for maxReceiveCount"),
        pytest.param(redrive(10**4_000), "Invalid value for maxReceiveCount", id="huge"),
        (redrive(1, "dead"), "Dead-letter target ARN should be fully qualified ARN."),
        (redrive(1, 7), "Dead-letter target ARN should be fully qualified ARN."),
        (redrive(None), "does not contain mandatory attribute: maxReceiveCount."),
        ('{"maxReceiveCount":1}', "does not contain mandatory attribute: deadLetterTargetArn."),
        ('{"deadLetterTargetArn":"a","maxReceiveCount":1,"b":1}', "Only following attributes"),
    ],
)
def test_refused_redrive_policies(policy: str, reason: str) -> None:
    error = refusal(STANDARD, RedrivePolicy=policy)
    assert error.code == "InvalidParameterValue"
    assert error.message.startswith("Value {")
    assert reason in error.message


@pytest.mark.parametrize(
    "policy", ["x", "[]", "1", '"a"', "null", '{"a":', pytest.param("{" * 5_000, id="deep")]
)
def test_a_redrive_policy_that_is_no_map(policy: str) -> None:
    error = refusal(STANDARD, RedrivePolicy=policy)
    assert error.shape == "InvalidAttributeValue"
    assert error.message == (
        "Invalid value for the parameter RedrivePolicy."
        " Reason: Redrive policy is not a valid JSON map."
    )


@pytest.mark.parametrize(
    ("policy", "shape"),
    [
        ("x", "InvalidAttributeValue"),
        ("[]", "InvalidAttributeValue"),
        ('{"redrivePermission":"some"}', "InvalidAttributeValue"),
        ('{"redrivePermission":"allowAll","other":1}', "InvalidAttributeValue"),
        ('{"redrivePermission":"byQueue","sourceQueueArns":[1]}', "InvalidAttributeValue"),
        ('{"redrivePermission":"byQueue"}', "InvalidParameterValueException"),
        ('{"redrivePermission":"byQueue","sourceQueueArns":[]}', "InvalidParameterValueException"),
        (
            '{"redrivePermission":"denyAll","sourceQueueArns":["a"]}',
            "InvalidParameterValueException",
        ),
        (
            json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": ["a"] * 11}),
            "InvalidParameterValueException",
        ),
    ],
)
def test_refused_redrive_allow_policies(policy: str, shape: str) -> None:
    assert refusal(STANDARD, RedriveAllowPolicy=policy).shape == shape


def test_a_redrive_allow_policy_is_shown_as_it_was_given() -> None:
    text = '{"redrivePermission":"byQueue","sourceQueueArns":["' + str(SOURCE) + '"]}'
    changed = changed_attributes(STANDARD, {"RedriveAllowPolicy": text})
    assert shown_attributes(changed)["RedriveAllowPolicy"] == text
    assert changed_attributes(changed, {"RedriveAllowPolicy": ""}) == STANDARD


def allowing(permission: str, *arns: QueueArn) -> QueueAttributes:
    return QueueAttributes(
        redrive_allow_policy=RedriveAllowPolicy(
            redrive_permission=permission,  # type: ignore[arg-type]
            source_queue_arns=tuple(str(arn) for arn in arns),
        )
    )


@pytest.mark.parametrize("target", [STANDARD, allowing("allowAll"), allowing("byQueue", SOURCE)])
def test_an_allowed_dead_letter_target(target: QueueAttributes) -> None:
    attributes = changed_attributes(STANDARD, {"RedrivePolicy": redrive(1)})
    check_dead_letter_target(SOURCE, attributes, target, redrive(1))


@pytest.mark.parametrize(
    ("target", "arn", "reason"),
    [
        (None, DEAD, "Dead letter target does not exist."),
        (STANDARD, DEAD._replace(region="eu-west-1"), "owner should be same"),
        (STANDARD, DEAD._replace(account="111111111111"), "owner should be same"),
        (FIFO, DEAD, "must be same type"),
        (allowing("denyAll"), DEAD, "does not permit"),
        (allowing("byQueue", DEAD), DEAD, "does not permit"),
    ],
)
def test_a_refused_dead_letter_target(
    target: QueueAttributes | None, arn: QueueArn, reason: str
) -> None:
    policy = redrive(1, str(arn))
    attributes = changed_attributes(STANDARD, {"RedrivePolicy": policy})
    with pytest.raises(SqsError, match=reason) as caught:
        check_dead_letter_target(SOURCE, attributes, target, policy)
    assert caught.value.code == "InvalidParameterValue"
    assert caught.value.message.startswith(f"Value {policy} for parameter RedrivePolicy")


def test_arns() -> None:
    assert str(SOURCE) == "arn:aws:sqs:us-east-1:000000000000:tasks"
    assert parse_arn(str(SOURCE)) == SOURCE
    for text in ("", "tasks", "arn:aws:sns:us-east-1:000000000000:t", str(SOURCE) + "\n"):
        assert parse_arn(text) is None


def test_selection_by_name() -> None:
    values = {"DelaySeconds": "0", "QueueArn": "a"}
    assert selected_attributes((), values) == {}
    assert selected_attributes(("All",), values) == values
    assert selected_attributes(("QueueArn", "Policy"), values) == {"QueueArn": "a"}
    with pytest.raises(SqsError, match=r"^Unknown Attribute delayseconds\.$"):
        selected_attributes(("All", "delayseconds"), values)


@drawn(
    st.dictionaries(st.sampled_from(sorted(ATTRIBUTE_NAMES)), st.text() | st.from_regex("[0-9]+")),
    st.booleans(),
)
def test_any_text_is_taken_or_refused(given: dict[str, str], fifo: bool) -> None:
    try:
        changed = changed_attributes(FIFO if fifo else STANDARD, given)
    except SqsError as error:
        refused = error
    else:
        assert first_difference(changed, given) is None
        wire = msgspec.msgpack.encode(changed)
        assert msgspec.msgpack.decode(wire, type=QueueAttributes) == changed
        return
    assert refused.shape in (
        *("InvalidAttributeName", "InvalidAttributeValue"),
        "InvalidParameterValueException",
    )
