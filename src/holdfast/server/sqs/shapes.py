"""The requests and answers of the 23 SQS actions, as AWS's service model describes them.

Fields are optional where the model says so; a missing list or map is empty. Types only: ranges,
names and sizes are checked by the modules that act on them.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated, Final, NamedTuple, TypeAlias

from msgspec import Meta, Struct, field

from holdfast.server.sqs.errors import SqsError, queue_does_not_exist

_SPELLING: Final = {"md5": "MD5", "aws": "AWS"}


def member_name(name: str) -> str:
    """AWS's name of a field: `md5_of_body` is MD5OfBody."""
    return "".join(_SPELLING.get(word, word.capitalize()) for word in name.split("_"))


Integer: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
"""An integer of a request. AWS cannot read larger ones either."""


class Request(Struct, frozen=True, kw_only=True, rename=member_name):
    """The parameters of an action."""


class QueueRequest(Request, frozen=True, kw_only=True):
    """The parameters of an action on one queue."""

    queue_url: str


class Answer(Struct, frozen=True, kw_only=True, rename=member_name, omit_defaults=True):
    """The result of an action. Empty lists, empty maps and `None` are left out."""


class MessageAttributeValue(
    Struct, frozen=True, kw_only=True, rename=member_name, omit_defaults=True
):
    """A typed value of a message, in requests and answers. AWS reserves the lists. A missing type
    is refused with the other checks of message attributes."""

    data_type: str = ""
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: tuple[str, ...] = ()
    binary_list_values: tuple[bytes, ...] = ()


MessageAttributes: TypeAlias = dict[str, MessageAttributeValue]


class BatchEntry(Struct, frozen=True, kw_only=True, rename=member_name):
    """One entry of a batch request."""

    id: str


class BatchResultErrorEntry(Answer, frozen=True, kw_only=True):
    """An entry of a batch that failed."""

    id: str
    sender_fault: bool
    code: str
    message: str | None = None

    @classmethod
    def of(cls, entry_id: str, error: SqsError) -> BatchResultErrorEntry:
        """The entry with this id failed with this error."""
        return cls(
            id=entry_id, sender_fault=error.sender_fault, code=error.code, message=error.message
        )


class CreateQueueRequest(Request, frozen=True, kw_only=True):
    """CreateQueue."""

    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = field(name="tags", default_factory=dict)


class CreateQueueResult(Answer, frozen=True, kw_only=True):
    """CreateQueue."""

    queue_url: str


class DeleteQueueRequest(QueueRequest, frozen=True, kw_only=True):
    """DeleteQueue."""


class GetQueueUrlRequest(Request, frozen=True, kw_only=True):
    """GetQueueUrl."""

    queue_name: str
    queue_owner_aws_account_id: str | None = None


class GetQueueUrlResult(Answer, frozen=True, kw_only=True):
    """GetQueueUrl."""

    queue_url: str


class ListQueuesRequest(Request, frozen=True, kw_only=True):
    """ListQueues."""

    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: Integer | None = None


class ListQueuesResult(Answer, frozen=True, kw_only=True):
    """ListQueues."""

    queue_urls: tuple[str, ...] = ()
    next_token: str | None = None


class GetQueueAttributesRequest(QueueRequest, frozen=True, kw_only=True):
    """GetQueueAttributes."""

    attribute_names: tuple[str, ...] = ()


class GetQueueAttributesResult(Answer, frozen=True, kw_only=True):
    """GetQueueAttributes."""

    attributes: dict[str, str] = {}


class SetQueueAttributesRequest(QueueRequest, frozen=True, kw_only=True):
    """SetQueueAttributes."""

    attributes: dict[str, str]


class PurgeQueueRequest(QueueRequest, frozen=True, kw_only=True):
    """PurgeQueue."""


class SendMessageRequest(QueueRequest, frozen=True, kw_only=True):
    """SendMessage."""

    message_body: str
    delay_seconds: Integer | None = None
    message_attributes: MessageAttributes = {}
    message_system_attributes: MessageAttributes = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageResult(Answer, frozen=True, kw_only=True):
    """SendMessage."""

    message_id: str
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class SendMessageBatchRequestEntry(BatchEntry, frozen=True, kw_only=True):
    """A message of SendMessageBatch."""

    message_body: str
    delay_seconds: Integer | None = None
    message_attributes: MessageAttributes = {}
    message_system_attributes: MessageAttributes = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageBatchRequest(QueueRequest, frozen=True, kw_only=True):
    """SendMessageBatch."""

    entries: tuple[SendMessageBatchRequestEntry, ...]


class SendMessageBatchResultEntry(Answer, frozen=True, kw_only=True):
    """A message that SendMessageBatch accepted."""

    id: str
    message_id: str
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class SendMessageBatchResult(Answer, frozen=True, kw_only=True):
    """SendMessageBatch. The model requires both lists, so they are sent even if empty."""

    successful: tuple[SendMessageBatchResultEntry, ...]
    failed: tuple[BatchResultErrorEntry, ...]


class ReceiveMessageRequest(QueueRequest, frozen=True, kw_only=True):
    """ReceiveMessage. `attribute_names` is the older name of `message_system_attribute_names`."""

    attribute_names: tuple[str, ...] = ()
    message_system_attribute_names: tuple[str, ...] = ()
    message_attribute_names: tuple[str, ...] = ()
    max_number_of_messages: Integer | None = None
    visibility_timeout: Integer | None = None
    wait_time_seconds: Integer | None = None
    receive_request_attempt_id: str | None = None


class ReceivedMessage(Answer, frozen=True, kw_only=True):
    """A received message. `attributes` are its system attributes."""

    message_id: str
    receipt_handle: str
    md5_of_body: str
    body: str
    attributes: dict[str, str] = {}
    md5_of_message_attributes: str | None = None
    message_attributes: MessageAttributes = {}


class ReceiveMessageResult(Answer, frozen=True, kw_only=True):
    """ReceiveMessage."""

    messages: tuple[ReceivedMessage, ...] = ()


class DeleteMessageRequest(QueueRequest, frozen=True, kw_only=True):
    """DeleteMessage."""

    receipt_handle: str


class DeleteMessageBatchRequestEntry(BatchEntry, frozen=True, kw_only=True):
    """A message of DeleteMessageBatch."""

    receipt_handle: str


class DeleteMessageBatchRequest(QueueRequest, frozen=True, kw_only=True):
    """DeleteMessageBatch."""

    entries: tuple[DeleteMessageBatchRequestEntry, ...]


class DeleteMessageBatchResultEntry(Answer, frozen=True, kw_only=True):
    """A message that DeleteMessageBatch deleted."""

    id: str


class DeleteMessageBatchResult(Answer, frozen=True, kw_only=True):
    """DeleteMessageBatch. The model requires both lists, so they are sent even if empty."""

    successful: tuple[DeleteMessageBatchResultEntry, ...]
    failed: tuple[BatchResultErrorEntry, ...]


class ChangeMessageVisibilityRequest(QueueRequest, frozen=True, kw_only=True):
    """ChangeMessageVisibility."""

    receipt_handle: str
    visibility_timeout: Integer


class ChangeMessageVisibilityBatchRequestEntry(BatchEntry, frozen=True, kw_only=True):
    """A message of ChangeMessageVisibilityBatch."""

    receipt_handle: str
    visibility_timeout: Integer | None = None


class ChangeMessageVisibilityBatchRequest(QueueRequest, frozen=True, kw_only=True):
    """ChangeMessageVisibilityBatch."""

    entries: tuple[ChangeMessageVisibilityBatchRequestEntry, ...]


class ChangeMessageVisibilityBatchResultEntry(Answer, frozen=True, kw_only=True):
    """A message whose timeout ChangeMessageVisibilityBatch changed."""

    id: str


class ChangeMessageVisibilityBatchResult(Answer, frozen=True, kw_only=True):
    """ChangeMessageVisibilityBatch. The model requires both lists: they are sent even if empty."""

    successful: tuple[ChangeMessageVisibilityBatchResultEntry, ...]
    failed: tuple[BatchResultErrorEntry, ...]


class ListDeadLetterSourceQueuesRequest(QueueRequest, frozen=True, kw_only=True):
    """ListDeadLetterSourceQueues."""

    next_token: str | None = None
    max_results: Integer | None = None


class ListDeadLetterSourceQueuesResult(Answer, frozen=True, kw_only=True):
    """ListDeadLetterSourceQueues. The model requires the list, so it is sent even if empty."""

    queue_urls: tuple[str, ...] = field(name="queueUrls")
    next_token: str | None = None


class StartMessageMoveTaskRequest(Request, frozen=True, kw_only=True):
    """StartMessageMoveTask."""

    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: Integer | None = None


class StartMessageMoveTaskResult(Answer, frozen=True, kw_only=True):
    """StartMessageMoveTask."""

    task_handle: str


class CancelMessageMoveTaskRequest(Request, frozen=True, kw_only=True):
    """CancelMessageMoveTask."""

    task_handle: str


class CancelMessageMoveTaskResult(Answer, frozen=True, kw_only=True):
    """CancelMessageMoveTask."""

    approximate_number_of_messages_moved: int


class ListMessageMoveTasksRequest(Request, frozen=True, kw_only=True):
    """ListMessageMoveTasks."""

    source_arn: str
    max_results: Integer | None = None


class ListMessageMoveTasksResultEntry(Answer, frozen=True, kw_only=True):
    """A move task. Its handle is shown while it runs."""

    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int
    approximate_number_of_messages_to_move: int | None = None
    failure_reason: str | None = None
    started_timestamp: int


class ListMessageMoveTasksResult(Answer, frozen=True, kw_only=True):
    """ListMessageMoveTasks. Clients expect the list even if it is empty."""

    results: tuple[ListMessageMoveTasksResultEntry, ...]


class TagQueueRequest(QueueRequest, frozen=True, kw_only=True):
    """TagQueue."""

    tags: dict[str, str]


class UntagQueueRequest(QueueRequest, frozen=True, kw_only=True):
    """UntagQueue."""

    tag_keys: tuple[str, ...]


class ListQueueTagsRequest(QueueRequest, frozen=True, kw_only=True):
    """ListQueueTags."""


class ListQueueTagsResult(Answer, frozen=True, kw_only=True):
    """ListQueueTags."""

    tags: dict[str, str] = {}


class AddPermissionRequest(QueueRequest, frozen=True, kw_only=True):
    """AddPermission."""

    label: str
    aws_account_ids: tuple[str, ...]
    actions: tuple[str, ...]


class RemovePermissionRequest(QueueRequest, frozen=True, kw_only=True):
    """RemovePermission."""

    label: str


class Action(NamedTuple):
    """An action: its parameters, its result (`None`: it has none), and whether it is about one
    queue, which its QueueUrl or its path names."""

    name: str
    request: type[Request]
    answer: type[Answer] | None

    @property
    def on_queue(self) -> bool:
        """True if the action is about one queue."""
        return issubclass(self.request, QueueRequest)


ACTIONS: Final[dict[str, Action]] = {
    action.name: action
    for action in (
        Action("AddPermission", AddPermissionRequest, None),
        Action("CancelMessageMoveTask", CancelMessageMoveTaskRequest, CancelMessageMoveTaskResult),
        Action("ChangeMessageVisibility", ChangeMessageVisibilityRequest, None),
        Action(
            "ChangeMessageVisibilityBatch",
            ChangeMessageVisibilityBatchRequest,
            ChangeMessageVisibilityBatchResult,
        ),
        Action("CreateQueue", CreateQueueRequest, CreateQueueResult),
        Action("DeleteMessage", DeleteMessageRequest, None),
        Action("DeleteMessageBatch", DeleteMessageBatchRequest, DeleteMessageBatchResult),
        Action("DeleteQueue", DeleteQueueRequest, None),
        Action("GetQueueAttributes", GetQueueAttributesRequest, GetQueueAttributesResult),
        Action("GetQueueUrl", GetQueueUrlRequest, GetQueueUrlResult),
        Action(
            "ListDeadLetterSourceQueues",
            ListDeadLetterSourceQueuesRequest,
            ListDeadLetterSourceQueuesResult,
        ),
        Action("ListMessageMoveTasks", ListMessageMoveTasksRequest, ListMessageMoveTasksResult),
        Action("ListQueueTags", ListQueueTagsRequest, ListQueueTagsResult),
        Action("ListQueues", ListQueuesRequest, ListQueuesResult),
        Action("PurgeQueue", PurgeQueueRequest, None),
        Action("ReceiveMessage", ReceiveMessageRequest, ReceiveMessageResult),
        Action("RemovePermission", RemovePermissionRequest, None),
        Action("SendMessage", SendMessageRequest, SendMessageResult),
        Action("SendMessageBatch", SendMessageBatchRequest, SendMessageBatchResult),
        Action("SetQueueAttributes", SetQueueAttributesRequest, None),
        Action("StartMessageMoveTask", StartMessageMoveTaskRequest, StartMessageMoveTaskResult),
        Action("TagQueue", TagQueueRequest, None),
        Action("UntagQueue", UntagQueueRequest, None),
    )
}


class QueuePath(NamedTuple):
    """The account and the name of a queue. A bare name has no account: it is the caller's."""

    account: str | None
    name: str


_QUEUE_URL_MAX: Final = 2_048
_QUEUE_PATH: Final = re.compile(
    r"(?:https?://[^/?#]*/(?:[^?#]*/)?|/)?([0-9]{12})/([A-Za-z0-9_.-]{1,80})"
)
_BARE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,80}")


def queue_of(url: str) -> QueuePath:
    """The queue that a QueueUrl names. Its host is ignored: clients reach a server by many names.
    Nonsense is a queue that does not exist, as on AWS."""
    path = _path_of(url) if len(url) <= _QUEUE_URL_MAX else None
    if path is None:
        raise queue_does_not_exist()
    return path


@functools.lru_cache(maxsize=1_000)
def _path_of(url: str) -> QueuePath | None:
    if match := _QUEUE_PATH.fullmatch(url):
        return QueuePath(match[1], match[2])
    return QueuePath(None, url) if _BARE_NAME.fullmatch(url) else None
