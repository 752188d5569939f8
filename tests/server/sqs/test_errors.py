"""The error table against AWS's service model, and the texts that AWS's clients compare."""

import pytest

from holdfast.server.sqs import errors
from holdfast.server.sqs.errors import COMMON, KINDS, MODELLED, SqsError
from tests.server.sqs.service_model import service_model

# Shapes whose code has the prefix of the service, as the last model of the Query protocol had them.
PREFIXED = """
    BatchEntryIdsNotDistinct BatchRequestTooLong EmptyBatchRequest InvalidBatchEntryId
    MessageNotInflight PurgeQueueInProgress QueueDeletedRecently TooManyEntriesInBatchRequest
    UnsupportedOperation
""".split()


def test_every_error_of_the_model_is_in_the_table() -> None:
    modelled = {shape.name for shape in service_model().error_shapes}
    assert modelled == {name for name, kind in KINDS.items() if kind.namespace == MODELLED}


@pytest.mark.parametrize("shape", PREFIXED)
def test_codes_with_a_prefix(shape: str) -> None:
    assert KINDS[shape].code == f"AWS.SimpleQueueService.{shape}"


@pytest.mark.parametrize(
    ("shape", "code", "status"),
    [
        ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400),
        ("QueueNameExists", "QueueAlreadyExists", 400),
        ("QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently", 400),
        ("PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403),
        ("OverLimit", "OverLimit", 403),
        ("RequestThrottled", "RequestThrottled", 403),
        ("InvalidSecurity", "InvalidSecurity", 403),
        ("InvalidAddress", "InvalidAddress", 404),
        ("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404),
        ("ResourceNotFoundException", "ResourceNotFoundException", 404),
        ("InvalidParameterValueException", "InvalidParameterValue", 400),
        ("MissingRequiredParameterException", "MissingParameter", 400),
        ("KmsOptInRequired", "KMS.OptInRequired", 403),
        ("KmsThrottled", "KMS.ThrottlingException", 400),
        ("KmsAccessDenied", "KMS.AccessDeniedException", 400),
    ],
)
def test_codes_and_statuses(shape: str, code: str, status: int) -> None:
    error = SqsError(shape, "")
    assert (error.code, error.status) == (code, status)


def test_only_errors_of_the_server_are_not_the_senders_fault() -> None:
    servers = {name for name in KINDS if not SqsError(name, "").sender_fault}
    assert servers == {"InternalFailure", "ServiceUnavailableException"}
    assert all(KINDS[name].namespace == COMMON for name in servers)


def test_a_missing_queue_has_another_text_in_the_query_protocol() -> None:
    error = errors.queue_does_not_exist()
    assert error.message == "The specified queue does not exist."
    assert error.query_message == "The specified queue does not exist for this wsdl version."


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            errors.too_many_entries(20),
            "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
            "Maximum number of entries per request are 10. You have sent 20.",
        ),
        (
            errors.batch_too_long(1_048_577),
            "AWS.SimpleQueueService.BatchRequestTooLong",
            "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.",
        ),
        (
            errors.empty_batch("SendMessageBatch"),
            "AWS.SimpleQueueService.EmptyBatchRequest",
            "There should be at least one SendMessageBatchRequestEntry in the request.",
        ),
        (
            errors.repeated_entry_id("a"),
            "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
            "Id a repeated.",
        ),
        (
            errors.purge_in_progress("tasks"),
            "AWS.SimpleQueueService.PurgeQueueInProgress",
            "Only one PurgeQueue operation on tasks is allowed every 60 seconds.",
        ),
        (
            errors.message_too_long(1024),
            "InvalidParameterValue",
            "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.",
        ),
        (
            errors.message_too_long(1024, in_batch=True),
            "InvalidParameterValue",
            (
                "One or more parameters cannot be validated."
                " Reason: Message must be shorter than 1024 bytes."
            ),
        ),
        (
            errors.wait_out_of_range(21),
            "InvalidParameterValue",
            (
                "Value 21 for parameter WaitTimeSeconds is invalid."
                " Reason: Must be >= 0 and <= 20, if provided."
            ),
        ),
        (
            errors.count_out_of_range(0),
            "InvalidParameterValue",
            (
                "Value 0 for parameter MaxNumberOfMessages is invalid."
                " Reason: Must be between 1 and 10, if provided."
            ),
        ),
        (
            errors.delay_out_of_range(901),
            "InvalidParameterValue",
            (
                "Value 901 for parameter DelaySeconds is invalid."
                " Reason: DelaySeconds must be >= 0 and <= 900."
            ),
        ),
        (
            errors.visibility_beyond_limit(43_200),
            "InvalidParameterValue",
            (
                "Value 43200 for parameter VisibilityTimeout is invalid."
                " Reason: Total VisibilityTimeout for the message is beyond the limit"
                " [43200 seconds]."
            ),
        ),
        (
            errors.invalid_fifo_id("MessageGroupId", "a b"),
            "InvalidParameterValue",
            (
                "Value a b for parameter MessageGroupId is invalid. Reason: MessageGroupId can only"
                " include alphanumeric and punctuation characters. 1 to 128 in length."
            ),
        ),
        (
            errors.missing_group_id(),
            "MissingParameter",
            "The request must contain the parameter MessageGroupId.",
        ),
        (
            errors.missing_group_id(in_batch=True),
            "InvalidParameterValue",
            "The request must contain the parameter MessageGroupId.",
        ),
        (
            errors.wrong_queue_type("DelaySeconds", 2),
            "InvalidParameterValue",
            (
                "Value 2 for parameter DelaySeconds is invalid. Reason: The request include"
                " parameter that is not valid for this queue type."
            ),
        ),
        (errors.unknown_attribute("X"), "InvalidAttributeName", "Unknown Attribute X."),
        (
            errors.fifo_only_attribute("DeduplicationScope"),
            "InvalidAttributeName",
            "You can specify the DeduplicationScope only when FifoQueue is set to true.",
        ),
        (
            errors.queue_type_change(),
            "InvalidAttributeValue",
            (
                "Invalid value for the parameter FifoQueue."
                " Reason: Modifying queue type is not supported."
            ),
        ),
        (
            errors.queue_name_exists("DelaySeconds"),
            "QueueAlreadyExists",
            (
                "A queue already exists with the same name and a different value for attribute"
                " DelaySeconds"
            ),
        ),
        (
            errors.expired_handle("h"),
            "InvalidParameterValue",
            (
                "Value h for parameter ReceiptHandle is invalid."
                " Reason: The receipt handle has expired."
            ),
        ),
        (
            errors.no_dead_letter_target("{}"),
            "InvalidParameterValue",
            (
                "Value {} for parameter RedrivePolicy is invalid."
                " Reason: Dead letter target does not exist."
            ),
        ),
        (
            errors.no_such_resource("SourceArn"),
            "ResourceNotFoundException",
            "The resource that you specified for the SourceArn parameter doesn't exist.",
        ),
    ],
)
def test_texts(error: SqsError, code: str, message: str) -> None:
    assert (error.code, error.message, str(error)) == (code, message, message)


@pytest.mark.parametrize(
    "value", ["x" * 4_000_000, 10**5_000, -(10**5_000)], ids=["text", "integer", "negative"]
)
def test_an_error_is_not_as_long_as_a_hostile_value(value: object) -> None:
    assert len(errors.invalid_value("DelaySeconds", value, "No.").message) < 1_200


def test_a_receipt_handle_is_shown_in_full() -> None:
    assert "x" * 1_024 + '"' in errors.invalid_handle("x" * 1_024).message
