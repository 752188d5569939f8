"""The errors of Amazon SQS: one table of shapes, a constructor for each text that AWS uses, and
`error_of`, which turns an error of Holdfast into one of SQS.

A shape is the name in `__type` of the JSON protocol. The code is the name in the Query protocol,
in the header `x-amzn-query-error` and in a failed batch entry.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.errors import (
    EngineError,
    Forbidden,
    HoldfastError,
    NotAccepting,
    PayloadTooLarge,
    QueueFull,
    QuotaExceeded,
    Unauthenticated,
    UnknownQueue,
    Unsupported,
)
from holdfast.server.access.sigv4 import SignatureRefused
from holdfast.server.http.problems import (
    BadRequest,
    SlowRequest,
    TooLarge,
    Unexpected,
    WrongContent,
)

MODELLED: Final = "com.amazonaws.sqs"
"""The namespace of the shapes in the service's model."""
COMMON: Final = "com.amazon.coral.service"
"""The namespace of the shapes that all AWS services share."""


class Kind(NamedTuple):
    """The names and the HTTP status of one error shape."""

    code: str
    status: int
    namespace: str = MODELLED


_PREFIX: Final = "AWS.SimpleQueueService."

KINDS: Final[dict[str, Kind]] = {
    "BatchEntryIdsNotDistinct": Kind(_PREFIX + "BatchEntryIdsNotDistinct", 400),
    "BatchRequestTooLong": Kind(_PREFIX + "BatchRequestTooLong", 400),
    "EmptyBatchRequest": Kind(_PREFIX + "EmptyBatchRequest", 400),
    "InvalidAddress": Kind("InvalidAddress", 404),
    "InvalidAttributeName": Kind("InvalidAttributeName", 400),
    "InvalidAttributeValue": Kind("InvalidAttributeValue", 400),
    "InvalidBatchEntryId": Kind(_PREFIX + "InvalidBatchEntryId", 400),
    "InvalidIdFormat": Kind("InvalidIdFormat", 400),
    "InvalidMessageContents": Kind("InvalidMessageContents", 400),
    "InvalidSecurity": Kind("InvalidSecurity", 403),
    "KmsAccessDenied": Kind("KMS.AccessDeniedException", 400),
    "KmsDisabled": Kind("KMS.DisabledException", 400),
    "KmsInvalidKeyUsage": Kind("KMS.InvalidKeyUsageException", 400),
    "KmsInvalidState": Kind("KMS.InvalidStateException", 400),
    "KmsNotFound": Kind("KMS.NotFoundException", 400),
    "KmsOptInRequired": Kind("KMS.OptInRequired", 403),
    "KmsThrottled": Kind("KMS.ThrottlingException", 400),
    "MessageNotInflight": Kind(_PREFIX + "MessageNotInflight", 400),
    "OverLimit": Kind("OverLimit", 403),
    "PurgeQueueInProgress": Kind(_PREFIX + "PurgeQueueInProgress", 403),
    "QueueDeletedRecently": Kind(_PREFIX + "QueueDeletedRecently", 400),
    "QueueDoesNotExist": Kind(_PREFIX + "NonExistentQueue", 400),
    "QueueNameExists": Kind("QueueAlreadyExists", 400),
    # The model says 404, AWS's API reference 400. SDKs look only at the name.
    "ReceiptHandleIsInvalid": Kind("ReceiptHandleIsInvalid", 404),
    "RequestThrottled": Kind("RequestThrottled", 403),
    "ResourceNotFoundException": Kind("ResourceNotFoundException", 404),
    "TooManyEntriesInBatchRequest": Kind(_PREFIX + "TooManyEntriesInBatchRequest", 400),
    "UnsupportedOperation": Kind(_PREFIX + "UnsupportedOperation", 400),
    "AccessDeniedException": Kind("AccessDenied", 403, COMMON),
    "ExpiredTokenException": Kind("ExpiredToken", 403, COMMON),
    "IncompleteSignatureException": Kind("IncompleteSignature", 400, COMMON),
    "InternalFailure": Kind("InternalFailure", 500, COMMON),
    "InvalidParameterValueException": Kind("InvalidParameterValue", 400, COMMON),
    "InvalidSignatureException": Kind("SignatureDoesNotMatch", 403, COMMON),
    "MissingAuthenticationTokenException": Kind("MissingAuthenticationToken", 403, COMMON),
    "MissingRequiredParameterException": Kind("MissingParameter", 400, COMMON),
    "RequestEntityTooLargeException": Kind("RequestEntityTooLarge", 413, COMMON),
    "RequestExpiredException": Kind("RequestExpired", 403, COMMON),
    "SerializationException": Kind("MalformedInput", 400, COMMON),
    "ServiceUnavailableException": Kind("ServiceUnavailable", 503, COMMON),
    "UnknownOperationException": Kind("InvalidAction", 400, COMMON),
    "UnrecognizedClientException": Kind("InvalidClientTokenId", 403, COMMON),
}


class SqsError(Exception):
    """An error that an SQS client receives: of a whole request, or of one entry of a batch."""

    def __init__(self, shape: str, message: str, *, query_message: str | None = None) -> None:
        """The Query protocol gets `query_message` where its text differs."""
        super().__init__(message)
        self.shape = shape
        self.message = message
        self.query_message: str = message if query_message is None else query_message
        self.kind: Kind = KINDS[shape]

    @property
    def code(self) -> str:
        """The name in the Query protocol, in headers and in batch entries."""
        return self.kind.code

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.kind.status

    @property
    def sender_fault(self) -> bool:
        """True if the client must change its request; a server error is worth a retry."""
        return self.kind.status < 500


def error_of(error: HoldfastError) -> SqsError:
    """The error that an SQS client gets for an error of Holdfast. Clients try again after a
    throttled request and after a status of 503."""
    text = str(error)
    match error:
        case SignatureRefused(aws_code=code):
            return SqsError(_SIGNATURE_SHAPES[code], text)
        case Unauthenticated():
            return SqsError("UnrecognizedClientException", text)
        case Forbidden():
            return SqsError("AccessDeniedException", text)
        case UnknownQueue():
            return queue_does_not_exist()
        case QuotaExceeded():
            return SqsError("RequestThrottled", text)
        case QueueFull():
            return over_limit(text)
        case Unsupported() | NotAccepting():
            return unsupported(text)
        case TooLarge() | PayloadTooLarge():
            return SqsError("RequestEntityTooLargeException", text)
        case BadRequest() | WrongContent():
            return malformed(text)
        case Unexpected():
            return SqsError("InternalFailure", text)
        case EngineError() | SlowRequest():
            return SqsError("ServiceUnavailableException", text)
        case _:
            return invalid_parameter(text)


_SIGNATURE_SHAPES: Final = {
    "IncompleteSignature": "IncompleteSignatureException",
    "InvalidClientTokenId": "UnrecognizedClientException",
    "MissingAuthenticationToken": "MissingAuthenticationTokenException",
    "RequestExpired": "RequestExpiredException",
    "SignatureDoesNotMatch": "InvalidSignatureException",
}


# Any parameter


def missing_parameter(name: str) -> SqsError:
    """A required parameter is absent."""
    text = f"The request must contain the parameter {name}."
    return SqsError("MissingRequiredParameterException", text)


def invalid_parameter(message: str) -> SqsError:
    """A parameter is invalid; `message` is the whole text."""
    return SqsError("InvalidParameterValueException", message)


def invalid_value(name: str, value: object, reason: str) -> SqsError:
    """The value of a parameter is invalid. `reason` ends with a full stop."""
    text = f"Value {shortened(value)} for parameter {name} is invalid. Reason: {reason}"
    return SqsError("InvalidParameterValueException", text)


def malformed(message: str) -> SqsError:
    """The body cannot be read, or a member has the wrong type."""
    return SqsError("SerializationException", message)


def unknown_action(name: str) -> SqsError:
    """No such action, or none that this path takes."""
    text = f"The action {shortened(name)} is not valid for this endpoint."
    return SqsError("UnknownOperationException", text)


def unsupported(message: str) -> SqsError:
    """AWS knows the request, and refuses it."""
    return SqsError("UnsupportedOperation", message)


def over_limit(message: str) -> SqsError:
    """A quota of the action is reached."""
    return SqsError("OverLimit", message)


# Queues


def queue_does_not_exist() -> SqsError:
    """No queue has this URL or name."""
    text = "The specified queue does not exist"
    return SqsError("QueueDoesNotExist", f"{text}.", query_message=f"{text} for this wsdl version.")


def queue_name_exists(attribute: str) -> SqsError:
    """CreateQueue named an existing queue with another value of this attribute."""
    text = "A queue already exists with the same name and a different value for attribute "
    return SqsError("QueueNameExists", text + attribute)


def queue_deleted_recently() -> SqsError:
    """The name was deleted less than 60 seconds ago."""
    text = "You must wait 60 seconds after deleting a queue before you can create another with"
    return SqsError("QueueDeletedRecently", f"{text} the same name.")


def purge_in_progress(queue: str) -> SqsError:
    """The queue was purged less than 60 seconds ago."""
    text = f"Only one PurgeQueue operation on {queue} is allowed every 60 seconds."
    return SqsError("PurgeQueueInProgress", text)


def invalid_queue_name(*, fifo: bool) -> SqsError:
    """The name of a new queue has a forbidden character, length or ending."""
    if fifo:
        text = (
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or"
            " underscores, must end with .fifo suffix and be 1 to 80 in length."
        )
    else:
        text = (
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )
    return invalid_parameter(text)


def unknown_attribute(name: str) -> SqsError:
    """No queue, or no queue of this type, has an attribute of this name."""
    return SqsError("InvalidAttributeName", f"Unknown Attribute {shortened(name)}.")


def fifo_only_attribute(name: str) -> SqsError:
    """The attribute belongs to FIFO queues."""
    text = f"You can specify the {name} only when FifoQueue is set to true."
    return SqsError("InvalidAttributeName", text)


def invalid_attribute(name: str, reason: str | None = None) -> SqsError:
    """The value of a queue attribute is invalid. `reason` ends with a full stop."""
    text = f"Invalid value for the parameter {name}."
    return SqsError("InvalidAttributeValue", f"{text} Reason: {reason}" if reason else text)


def queue_type_change() -> SqsError:
    """SetQueueAttributes gave FifoQueue another value."""
    return invalid_attribute("FifoQueue", "Modifying queue type is not supported.")


def two_encryptions() -> SqsError:
    """KMS and SQS-managed encryption were both asked for."""
    text = (
        "You can use one type of server-side encryption (SSE) at one time."
        " You can either enable KMS SSE or SQS SSE."
    )
    return SqsError("InvalidAttributeName", text)


def no_dead_letter_target(policy: str) -> SqsError:
    """The queue named by a RedrivePolicy is missing."""
    return invalid_value("RedrivePolicy", policy, "Dead letter target does not exist.")


def label_exists(label: str) -> SqsError:
    """AddPermission named an existing statement."""
    return invalid_value("Label", label, "Already exists.")


def unknown_label(label: str) -> SqsError:
    """RemovePermission named no existing statement."""
    return invalid_value("Label", label, "can't find label.")


def too_many_tags(queue: str) -> SqsError:
    """A queue has at most 50 tags."""
    return invalid_parameter(f"Too many tags added for queue {queue}.")


# Messages


def message_too_long(limit: int, *, in_batch: bool = False) -> SqsError:
    """A message has more bytes than its queue allows."""
    verb = "cannot be validated" if in_batch else "are invalid"
    text = f"One or more parameters {verb}. Reason: Message must be shorter than {limit} bytes."
    return invalid_parameter(text)


def invalid_characters() -> SqsError:
    """A body has characters that XML cannot carry."""
    text = (
        "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF"
        " | #xE000 to #xFFFD | #x10000 to #x10FFFF"
    )
    return SqsError("InvalidMessageContents", text)


def wait_out_of_range(seconds: int) -> SqsError:
    """WaitTimeSeconds is beyond 20."""
    return invalid_value("WaitTimeSeconds", seconds, "Must be >= 0 and <= 20, if provided.")


def count_out_of_range(count: int) -> SqsError:
    """MaxNumberOfMessages is not one of 1 to 10."""
    return invalid_value("MaxNumberOfMessages", count, "Must be between 1 and 10, if provided.")


def delay_out_of_range(seconds: int) -> SqsError:
    """DelaySeconds is beyond 900."""
    return invalid_value("DelaySeconds", seconds, "DelaySeconds must be >= 0 and <= 900.")


def visibility_out_of_range(seconds: int) -> SqsError:
    """VisibilityTimeout of a request is beyond 43,200."""
    return invalid_value(
        "VisibilityTimeout", seconds, "VisibilityTimeout must be an integer between 0 and 43200."
    )


def visibility_beyond_limit(seconds: int) -> SqsError:
    """A message would stay hidden for more than 12 hours after it was received."""
    reason = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]."
    return invalid_value("VisibilityTimeout", seconds, reason)


def invalid_fifo_id(name: str, value: str) -> SqsError:
    """A MessageGroupId or MessageDeduplicationId has a forbidden character or length."""
    reason = f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length."
    return invalid_value(name, value, reason)


def missing_group_id(*, in_batch: bool = False) -> SqsError:
    """Messages of a FIFO queue need a group."""
    error = missing_parameter("MessageGroupId")
    return invalid_parameter(error.message) if in_batch else error


def missing_deduplication_id() -> SqsError:
    """A FIFO queue without content-based deduplication needs an id for each message."""
    text = (
        "The queue should either have ContentBasedDeduplication enabled or"
        " MessageDeduplicationId provided explicitly"
    )
    return invalid_parameter(text)


def wrong_queue_type(name: str, value: object) -> SqsError:
    """The parameter has no meaning for this type of queue."""
    reason = "The request include parameter that is not valid for this queue type."
    return invalid_value(name, value, reason)


def invalid_handle(handle: str) -> SqsError:
    """The text is not a receipt handle."""
    text = f'The input receipt handle "{shortened(handle)}" is not a valid receipt handle.'
    return SqsError("ReceiptHandleIsInvalid", text)


def handle_of_other_queue(handle: str) -> SqsError:
    """The receipt handle belongs to another queue."""
    text = f'The receipt handle "{shortened(handle)}" is not valid for this queue.'
    return SqsError("ReceiptHandleIsInvalid", text)


def expired_handle(handle: str) -> SqsError:
    """The visibility timeout of a FIFO message has passed."""
    return invalid_value("ReceiptHandle", handle, "The receipt handle has expired.")


def not_in_flight(handle: str) -> SqsError:
    """ChangeMessageVisibility found no message that the handle could hide or show."""
    reason = "Message does not exist or is not available for visibility timeout change."
    return invalid_value("ReceiptHandle", handle, reason)


def attempt_not_retryable(attempt_id: str) -> SqsError:
    """A message of that receive request was deleted, or became visible, or was received anew."""
    reason = (
        "The receiveRequestAttemptId is not valid anymore since the receive call is not retryable."
    )
    return invalid_value("ReceiveRequestAttemptId", attempt_id, reason)


def too_many_in_flight() -> SqsError:
    """A standard queue has 120,000 messages in flight."""
    return over_limit("Too many messages in flight. Delete some messages before receiving more.")


# Batches


def empty_batch(action: str) -> SqsError:
    """A batch needs an entry."""
    text = f"There should be at least one {action}RequestEntry in the request."
    return SqsError("EmptyBatchRequest", text)


def too_many_entries(count: int) -> SqsError:
    """A batch has at most ten entries."""
    text = f"Maximum number of entries per request are 10. You have sent {count}."
    return SqsError("TooManyEntriesInBatchRequest", text)


def invalid_entry_id() -> SqsError:
    """The id of an entry has a forbidden character or length."""
    text = (
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores."
        " It can be at most 80 letters long."
    )
    return SqsError("InvalidBatchEntryId", text)


def repeated_entry_id(entry_id: str) -> SqsError:
    """Two entries of a batch have the same id."""
    return SqsError("BatchEntryIdsNotDistinct", f"Id {entry_id} repeated.")


def batch_too_long(size: int, limit: int = 1_048_576) -> SqsError:
    """The messages of a batch have too many bytes together."""
    text = f"Batch requests cannot be longer than {limit} bytes. You have sent {size} bytes."
    return SqsError("BatchRequestTooLong", text)


# Move tasks


def not_a_dead_letter_queue() -> SqsError:
    """No queue names the source as its dead-letter queue."""
    return invalid_parameter("Source queue must be configured as a Dead Letter Queue.")


def move_task_running() -> SqsError:
    """A source has one move task at a time."""
    text = (
        "There is already a task running. Only one active task is allowed for a source queue arn"
        " at a given time."
    )
    return invalid_parameter(text)


def invalid_task_handle() -> SqsError:
    """The text is not the handle of a move task."""
    return invalid_parameter("Value for parameter TaskHandle is invalid.")


def no_such_task() -> SqsError:
    """The move task does not exist, or does not run."""
    return SqsError("ResourceNotFoundException", "Task does not exist.")


def no_such_resource(parameter: str) -> SqsError:
    """The queue of a SourceArn or DestinationArn does not exist."""
    text = f"The resource that you specified for the {parameter} parameter doesn't exist."
    return SqsError("ResourceNotFoundException", text)


_SHOWN_MAX: Final = 1_024


def shortened(value: object) -> str:
    """A value as an error shows it: an error must not be as long as a hostile request."""
    try:
        text = str(value)
    except ValueError:
        # Python does not print an integer of thousands of digits.
        return "with too many digits"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
