"""Actions on queues: create, find, list, change, purge and delete them; their tags and policies.

Every change is a compare-and-set on the record that was read. The record is saved first, and
`apply_settings` makes the queue's settings follow; upkeep finishes the step of a killed server. A
deleted queue is dropped first: the record that remains then only blocks its name.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import JobFilter, Queue, QueueView, State
from holdfast.core.verdict import Delete
from holdfast.engines.base import Engine
from holdfast.errors import Forbidden
from holdfast.ops.queues import drop_queue, find_queue
from holdfast.ops.records import TRIES_MAX, Stored
from holdfast.ops.sqs import ACCOUNT, MOVE_TASKS, SQS_QUEUES, TAGS_MAX, SqsQueue, queue_key
from holdfast.server.sqs import errors
from holdfast.server.sqs.call import SqsCall
from holdfast.server.sqs.catalog import KnownQueue, ListedQueue, QueueCatalog
from holdfast.server.sqs.queue_attributes import (
    QueueAttributes,
    attributes_for_create,
    changed_attributes,
    check_dead_letter_target,
    first_difference,
    parse_arn,
    selected_attributes,
    shown_attributes,
)
from holdfast.server.sqs.queue_settings import attributes_of, new_queue, with_attributes
from holdfast.server.sqs.shapes import (
    ACTIONS,
    AddPermissionRequest,
    CreateQueueRequest,
    CreateQueueResult,
    DeleteQueueRequest,
    GetQueueAttributesRequest,
    GetQueueAttributesResult,
    GetQueueUrlRequest,
    GetQueueUrlResult,
    ListDeadLetterSourceQueuesRequest,
    ListDeadLetterSourceQueuesResult,
    ListQueuesRequest,
    ListQueuesResult,
    ListQueueTagsRequest,
    ListQueueTagsResult,
    PurgeQueueRequest,
    RemovePermissionRequest,
    SetQueueAttributesRequest,
    TagQueueRequest,
    UntagQueueRequest,
)

PAUSE_MS: Final = 60 * bounds.SECOND_MS
"""The time between two purges of a queue, or from its deletion to its next creation."""
RESULTS_MAX: Final = 1_000
PURGE_STEP: Final = 1_000

_PURGE_S: Final = 5.0
"""A purge that takes longer is continued by upkeep."""
_TAG_KEY_MAX, _TAG_VALUE_MAX = 128, 256
_ACTIONS_MAX: Final = 7
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_OWNER_ACTIONS: Final = (
    *("AddPermission", "CancelMessageMoveTask", "CreateQueue", "DeleteQueue"),
    *("ListMessageMoveTasks", "ListQueues", "ListQueueTags", "RemovePermission"),
    *("SetQueueAttributes", "StartMessageMoveTask", "TagQueue", "UntagQueue"),
)
_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


async def create_queue(call: SqsCall, request: CreateQueueRequest) -> CreateQueueResult:
    """Create a queue. An existing one is the answer if it has all of the given attributes."""
    name, given = request.queue_name, request.attributes
    attributes = attributes_for_create(name, given)
    _check_tags(name, request.tags)
    key = queue_key(call.region, name)
    for _ in range(TRIES_MAX):
        known = await call.catalog.read(call.region, name)
        if known is not None:
            _check_existing(call, known, given)
            return CreateQueueResult(queue_url=call.url_of(name))
        stored = await SQS_QUEUES.read(call.store, key)
        old = None if stored is None else stored.value
        if call.state.is_strict and stored is not None and _is_deleted_recently(stored):
            raise errors.queue_deleted_recently()
        await _check_redrive(call, name, attributes, given)
        now = call.now_ms()
        record = SqsQueue(
            name=name,
            region=call.region,
            queue=await _new_queue_name(call, name, old),
            epoch=now if old is None else max(now, old.epoch + 1),
            created_at=now,
            modified_at=now,
            attributes=shown_attributes(attributes),
            tags=request.tags,
            pending=True,
        )
        # If another client creates it at the same time, the next round compares the attributes.
        if await SQS_QUEUES.save(call.engine, key, record, 0 if stored is None else stored.version):
            await apply_settings(call.engine, call.catalog, call.region, name)
    raise SQS_QUEUES.busy(key)


async def apply_settings(engine: Engine, catalog: QueueCatalog, region: str, name: str) -> None:
    """Make the settings of a queue follow its record, and note that they do. Upkeep repeats it
    after a crash."""
    key = queue_key(region, name)
    try:
        for _ in range(TRIES_MAX):
            stored = await SQS_QUEUES.read(engine, key)
            record = None if stored is None else stored.value
            if stored is None or record is None or not record.pending or record.deleted_at:
                return
            view = await find_queue(engine, record.queue)
            known = None if view is None else view.queue
            if known is None and record.modified_at != record.created_at:
                # It was dropped since. Only a new queue is declared.
                return
            base = known or new_queue(record.queue, is_fifo=record.is_fifo)
            wanted = await wanted_settings(catalog, record, base)
            if wanted != known and not await engine.declare(wanted, instead_of=known):
                continue
            if await SQS_QUEUES.save(engine, key, replace(record, pending=False), stored.version):
                return
        raise SQS_QUEUES.busy(key)
    finally:
        catalog.forget(region, name)


async def wanted_settings(catalog: QueueCatalog, record: SqsQueue, base: Queue) -> Queue:
    """The settings that a queue must have by its record."""
    attributes = attributes_of(record, base, catalog.account)
    policy = attributes.redrive_policy
    arn = None if policy is None else parse_arn(policy.dead_letter_target_arn)
    target = None
    if arn is not None and (arn.region, arn.account) == (record.region, catalog.account):
        target = await catalog.read(arn.region, arn.name)
    dead_queue = None if target is None or target.queue == record.queue else target.queue
    return with_attributes(base, record, attributes, dead_queue)


async def get_queue_url(call: SqsCall, request: GetQueueUrlRequest) -> GetQueueUrlResult:
    """The URL of a queue."""
    known = await call.queue_named(request.queue_name)
    return GetQueueUrlResult(queue_url=call.url_of(known.name))


async def list_queues(call: SqsCall, request: ListQueuesRequest) -> ListQueuesResult:
    """The URLs of the queues whose names begin with a prefix."""
    prefix = request.queue_name_prefix or ""
    names = [
        each.record.name for each in await _visible(call) if each.record.name.startswith(prefix)
    ]
    page, token = _page(names, request.max_results, request.next_token)
    return ListQueuesResult(queue_urls=tuple(map(call.url_of, page)), next_token=token)


async def list_dead_letter_source_queues(
    call: SqsCall, request: ListDeadLetterSourceQueuesRequest
) -> ListDeadLetterSourceQueuesResult:
    """The URLs of the queues that have this one as their dead-letter queue."""
    known = await call.queue(request.queue_url)
    arn = str(call.arn_of(known.name))
    names = [each.record.name for each in await _visible(call) if _target_of(call, each) == arn]
    page, token = _page(names, request.max_results, request.next_token)
    urls = tuple(map(call.url_of, page))
    return ListDeadLetterSourceQueuesResult(queue_urls=urls, next_token=token)


async def get_queue_attributes(
    call: SqsCall, request: GetQueueAttributesRequest
) -> GetQueueAttributesResult:
    """The attributes that the request names; none if it names none."""
    known = await call.queue(request.queue_url)
    names = request.attribute_names
    values = shown_attributes(known.attributes) | {
        "QueueArn": str(call.arn_of(known.name)),
        "CreatedTimestamp": str(known.record.created_at // bounds.SECOND_MS),
        "LastModifiedTimestamp": str(known.record.modified_at // bounds.SECOND_MS),
    }
    if "All" in names or any(name in _COUNTS for name in names):
        view = await call.catalog.count(known.queue)
        if view is None:
            raise errors.queue_does_not_exist()
        values |= _counts(view, holds_dead_letters=known.shows_dead_letters)
    return GetQueueAttributesResult(attributes=selected_attributes(names, values))


def visible_count(view: QueueView, *, holds_dead_letters: bool) -> int:
    """The messages that can be received. One whose timeout has ended is visible, even if the reaper
    has not seen it yet, and so are those that wait behind the first of their group."""
    dead = view.dead if holds_dead_letters else 0
    return view.ready + view.blocked + view.overdue + dead


async def set_queue_attributes(call: SqsCall, request: SetQueueAttributesRequest) -> None:
    """Change some attributes of a queue."""
    given = request.attributes
    known = await call.queue(request.queue_url)
    await _check_redrive(call, known.name, changed_attributes(known.attributes, given), given)

    def change(known: KnownQueue) -> SqsQueue:
        attributes = changed_attributes(known.attributes, given)
        return _with_attributes(known, attributes, given, call.now_ms())

    await _change(call, known, change)
    await apply_settings(call.engine, call.catalog, call.region, known.name)


async def purge_queue(call: SqsCall, request: PurgeQueueRequest) -> None:
    """Delete all messages of a queue, also those in flight, and forget its deduplication ids."""
    known = await call.queue(request.queue_url)

    def change(known: KnownQueue) -> SqsQueue:
        now, purged_at = call.now_ms(), known.record.purged_at
        if call.state.is_strict and purged_at is not None and 0 <= now - purged_at < PAUSE_MS:
            raise errors.purge_in_progress(known.name)
        epoch = max(now, known.epoch + 1)
        return replace(known.record, epoch=epoch, purged_at=now, purging=True)

    saved = await _change(call, known, change)
    async with call.api.noting("queue.purge", known.queue) as noted:
        noted.changed = 0
        states = purged_states(known.record, is_dead_queue=known.holds_dead_letters)
        until = asyncio.get_running_loop().time() + _PURGE_S
        while asyncio.get_running_loop().time() < until:
            # All messages, also those sent since: their clock may be ahead of this one.
            deleted = await purge_step(call.store, known.queue, states)
            noted.changed += deleted
            if deleted < PURGE_STEP:
                await end_purge(call.store, saved)
                return


def purged_states(record: SqsQueue, *, is_dead_queue: bool) -> tuple[State, ...]:
    """The states of the messages that a purge deletes. Clients do not see the dead letters of a
    queue that another program made."""
    states = (State.WAITING, State.LEASED)
    return (*states, State.DEAD) if is_dead_queue or record.created_at > 0 else states


async def purge_step(
    engine: Engine, queue: str, states: tuple[State, ...], created_before: int | None = None
) -> int:
    """Delete at most `PURGE_STEP` messages of a queue. Returns their number."""
    wanted = JobFilter(queue=queue, states=states, created_before=created_before)
    return await engine.amend(wanted, Delete(force=True), limit=PURGE_STEP)


async def end_purge(engine: Engine, record: SqsQueue) -> None:
    """Mark a purge as finished, unless another one has begun."""

    def change(now: SqsQueue | None) -> SqsQueue | None:
        is_same = now is not None and now.epoch == record.epoch and now.purging
        return replace(now, purging=False) if now is not None and is_same else now

    await SQS_QUEUES.update(engine, queue_key(record.region, record.name), change)


async def delete_queue(call: SqsCall, request: DeleteQueueRequest) -> None:
    """Delete a queue with all its messages."""
    found = await call.queue(request.queue_url)
    known = await call.catalog.read(call.region, found.name)
    if known is None:
        raise errors.queue_does_not_exist()
    await drop_queue(call.engine, known.queue)

    def change(now: SqsQueue | None) -> SqsQueue | None:
        record = now or known.record
        if record.deleted_at is None and record.created_at != known.record.created_at:
            # Another client has already created the queue again.
            return now
        ended = replace(record, attributes={}, tags={}, pending=False, purging=False)
        return replace(ended, deleted_at=call.now_ms())

    await SQS_QUEUES.update(call.engine, queue_key(call.region, known.name), change)
    call.catalog.forget(call.region, known.name)
    await MOVE_TASKS.remove(call.store, known.queue)
    if known.holds_dead_letters:
        await _release_sources(call, known.queue)


async def tag_queue(call: SqsCall, request: TagQueueRequest) -> None:
    """Add tags to a queue, or change their values."""
    if not request.tags:
        raise errors.missing_parameter("Tags")
    known = await call.queue(request.queue_url)

    def change(known: KnownQueue) -> SqsQueue:
        tags = {**known.record.tags, **request.tags}
        _check_tags(known.name, tags)
        return replace(known.record, tags=tags)

    await _change(call, known, change)


async def untag_queue(call: SqsCall, request: UntagQueueRequest) -> None:
    """Remove tags from a queue; unknown ones are ignored."""
    if not request.tag_keys:
        raise errors.invalid_parameter("Tag keys must be between 1 and 128 characters in length.")
    known = await call.queue(request.queue_url)

    def change(known: KnownQueue) -> SqsQueue:
        left = {
            key: value for key, value in known.record.tags.items() if key not in request.tag_keys
        }
        return replace(known.record, tags=left)

    await _change(call, known, change)


async def list_queue_tags(call: SqsCall, request: ListQueueTagsRequest) -> ListQueueTagsResult:
    """The tags of a queue."""
    known = await call.queue(request.queue_url)
    return ListQueueTagsResult(tags=known.record.tags)


async def add_permission(call: SqsCall, request: AddPermissionRequest) -> None:
    """Add a statement to the policy of a queue. Holdfast stores policies but does not enforce
    them."""
    known = await call.queue(request.queue_url)
    _check_permission(request)
    arn = str(call.arn_of(known.name))
    principals = [f"arn:aws:iam::{account}:root" for account in request.aws_account_ids]
    actions = [f"SQS:{action}" for action in request.actions]
    statement = {
        "Sid": request.label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_list(principals)},
        "Action": _one_or_list(actions),
        "Resource": arn,
    }

    def change(known: KnownQueue) -> SqsQueue:
        policy = _policy_of(known.attributes)
        statements = _statements_of(policy)
        if any(_label_of(each) == request.label for each in statements):
            raise errors.label_exists(request.label)
        whole = {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", **policy}
        whole["Statement"] = [*statements, statement]
        return _with_policy(known, whole, call.now_ms())

    await _change(call, known, change)


async def remove_permission(call: SqsCall, request: RemovePermissionRequest) -> None:
    """Remove a statement from the policy of a queue."""
    known = await call.queue(request.queue_url)

    def change(known: KnownQueue) -> SqsQueue:
        policy = _policy_of(known.attributes)
        statements = _statements_of(policy)
        left = [each for each in statements if _label_of(each) != request.label]
        if len(left) == len(statements):
            raise errors.unknown_label(request.label)
        return _with_policy(known, {**policy, "Statement": left} if left else None, call.now_ms())

    await _change(call, known, change)


async def _change(
    call: SqsCall, known: KnownQueue, change: Callable[[KnownQueue], SqsQueue]
) -> SqsQueue:
    """Save the result of `change` on the current record, and return it. It runs again after a
    concurrent change."""
    key = queue_key(call.region, known.name)
    for _ in range(TRIES_MAX):
        current = await call.catalog.read(call.region, known.name)
        if current is None:
            raise errors.queue_does_not_exist()
        record = change(current)
        if record == current.record:
            return record
        if await SQS_QUEUES.save(call.engine, key, record, current.version):
            call.catalog.forget(call.region, known.name)
            return record
    raise SQS_QUEUES.busy(key)


def _with_attributes(
    known: KnownQueue, attributes: QueueAttributes, given: Mapping[str, str], now: int
) -> SqsQueue:
    """The record with changed attributes. It stores the given ones, those that were stored before,
    and those that changed with them. An empty text is a policy that was removed."""
    before, after = shown_attributes(known.attributes), shown_attributes(attributes)
    names = {*known.record.attributes, *given}
    names |= {name for name in (*before, *after) if before.get(name) != after.get(name)}
    stored = {name: after.get(name, "") for name in names}
    # These cannot be empty: without a value they follow from the others.
    stored = {
        name: text
        for name, text in stored.items()
        if text or name in ("Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId")
    }
    return replace(known.record, attributes=stored, modified_at=now, pending=True)


def _is_deleted_recently(stored: Stored[SqsQueue]) -> bool:
    # The age of the record is that of the deletion, by the engine's clock: nothing saves it later.
    is_deleted = stored.value is not None and stored.value.deleted_at is not None
    return is_deleted and stored.age_ms < PAUSE_MS


def _check_existing(call: SqsCall, known: KnownQueue, given: Mapping[str, str]) -> None:
    if not call.may_see(known.queue):
        raise Forbidden(f"queue {known.name!r} is outside the prefix of this token")
    different = first_difference(known.attributes, given)
    if different is not None:
        raise errors.queue_name_exists(different)


async def _check_redrive(
    call: SqsCall, name: str, attributes: QueueAttributes, given: Mapping[str, str]
) -> None:
    """Check the queue that a new RedrivePolicy names."""
    policy, text = attributes.redrive_policy, given.get("RedrivePolicy", "")
    if policy is None or not text:
        return
    source, arn = call.arn_of(name), parse_arn(policy.dead_letter_target_arn)
    target = None
    if arn is not None and (arn.region, arn.account) == (source.region, source.account):
        target = await call.catalog.read(arn.region, arn.name)
    if arn == source:
        raise errors.invalid_value("RedrivePolicy", text, "A queue cannot be its own target.")
    is_visible = target is not None and call.may_see(target.queue)
    found = target.attributes if target is not None and is_visible else None
    check_dead_letter_target(source, attributes, found, text)


async def _new_queue_name(call: SqsCall, name: str, old: SqsQueue | None) -> str:
    """The name of the Holdfast queue of a new queue: the same in the default region, and in others
    one that no SQS queue can have."""
    if call.region == call.default_region:
        return name
    if old is not None:
        return old.queue
    made = f"{name}.{call.region}"
    if len(made) > 80:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        made = f"{name[: 80 - len(call.region) - 10]}.{call.region}.{digest}"
    if await find_queue(call.store, made) is not None:
        # Another program made it.
        made = f"{made[:71]}.{secrets.token_hex(4)}"
    return made


async def _visible(call: SqsCall) -> list[ListedQueue]:
    """The queues of the region that the caller may see."""
    return [
        each for each in await call.catalog.list(call.region) if call.may_see(each.record.queue)
    ]


def _target_of(call: SqsCall, listed: ListedQueue) -> str | None:
    """The ARN of a queue's dead-letter queue."""
    attributes = attributes_of(listed.record, listed.settings, call.account)
    policy = attributes.redrive_policy
    return None if policy is None else policy.dead_letter_target_arn


async def _release_sources(call: SqsCall, dead_queue: str) -> None:
    """Let no message of a queue die if its dead-letter queue is gone: clients would not find it. If
    a queue is changed at the same moment, the reconciler does it."""
    for each in await call.catalog.list(call.region):
        queue = each.settings
        if queue.dead_queue == dead_queue and each.record.attributes.get("RedrivePolicy"):
            released = replace(queue, dead_queue=None, max_attempts=0)
            await call.store.declare(released, instead_of=queue)
            call.catalog.forget(call.region, each.record.name)


def _counts(view: QueueView, *, holds_dead_letters: bool) -> dict[str, str]:
    visible = visible_count(view, holds_dead_letters=holds_dead_letters)
    counts = (visible, view.leased - view.overdue, view.delayed)
    return dict(zip(_COUNTS, map(str, counts), strict=True))


def _page(
    names: list[str], results_max: int | None, token: str | None
) -> tuple[list[str], str | None]:
    """A page of a sorted list, and the token of the next one. Without a limit there is one page."""
    if results_max is not None and not 1 <= results_max <= RESULTS_MAX:
        reason = f"MaxResults must be an integer between 1 and {RESULTS_MAX}."
        raise errors.invalid_value("MaxResults", results_max, reason)
    if token:
        after = _token_name(token)
        names = [name for name in names if name > after]
    page = names[: results_max or RESULTS_MAX]
    is_last = results_max is None or len(page) == len(names)
    return page, None if is_last else base64.urlsafe_b64encode(page[-1].encode()).decode()


def _token_name(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise errors.invalid_parameter("Invalid NextToken value.") from None


def _check_tags(queue: str, tags: Mapping[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise errors.too_many_tags(queue)
    for key, value in tags.items():
        if not 1 <= len(key) <= _TAG_KEY_MAX:
            raise errors.invalid_parameter(
                f"Tag keys must be between 1 and {_TAG_KEY_MAX} characters in length."
            )
        if len(value) > _TAG_VALUE_MAX:
            raise errors.invalid_parameter(
                f"Tag values must be between 0 and {_TAG_VALUE_MAX} characters in length."
            )


def _check_permission(request: AddPermissionRequest) -> None:
    if not _LABEL.fullmatch(request.label):
        reason = (
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."
        )
        raise errors.invalid_value("Label", request.label, reason)
    if not request.actions:
        raise errors.missing_parameter("Actions")
    if len(request.actions) > _ACTIONS_MAX:
        raise errors.over_limit(
            f"{len(request.actions)} Actions were found, maximum allowed is {_ACTIONS_MAX}."
        )
    for action in request.actions:
        if action in _OWNER_ACTIONS:
            reason = "Only the queue owner is allowed to invoke this action."
            raise errors.invalid_value("ActionName", f"SQS:{action}", reason)
        if action != "*" and action not in ACTIONS:
            reason = "Please refer to the appropriate WSDL for a list of valid actions."
            raise errors.invalid_value("ActionName", f"SQS:{action}", reason)
    if not request.aws_account_ids:
        raise errors.invalid_value("PrincipalId", "[]", "Unable to verify.")
    for account in request.aws_account_ids:
        if not ACCOUNT.match(account):
            raise errors.invalid_value("PrincipalId", f"[{account}]", "Unable to verify.")


def _policy_of(attributes: QueueAttributes) -> dict[str, Any]:
    """The policy of a queue, which a client wrote."""
    if attributes.policy is None:
        return {}
    policy = msgspec.json.decode(attributes.policy)
    return policy if isinstance(policy, dict) else {}


def _statements_of(policy: Mapping[str, Any]) -> list[Any]:
    statements = policy.get("Statement", [])
    return statements if isinstance(statements, list) else [statements]


def _label_of(statement: Any) -> Any:
    return statement.get("Sid") if isinstance(statement, dict) else None


def _with_policy(known: KnownQueue, policy: dict[str, Any] | None, now: int) -> SqsQueue:
    text = "" if policy is None else msgspec.json.encode(policy).decode()
    given = {"Policy": text}
    attributes = changed_attributes(known.attributes, given)
    return replace(_with_attributes(known, attributes, given, now), pending=known.record.pending)


def _one_or_list(values: Iterable[str]) -> str | list[str]:
    """AWS writes a list of one as its element."""
    every = list(values)
    return every[0] if len(every) == 1 else every
