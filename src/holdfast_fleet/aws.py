"""All I/O of the fleet: EC2, SSM, DynamoDB and CloudWatch. It decides nothing; `plan` does.

Calls block; the threads of the worker that runs the tasks bound them. A passing fault is tried
again after 100 ms, 500 ms and 1 s. Every other error is one line with the IAM action and the
resource, without a credential.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

import boto3.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)

from holdfast import ConfigError, EngineUnavailable, HoldfastError, NotFound, UsageError
from holdfast_fleet.metrics import Metric, put_requests
from holdfast_fleet.model import (
    ERROR_MAX,
    LOCK_PREFIX,
    MANAGED_TAG,
    PARAMETER_PREFIX,
    POOL_TAG,
    RUNNING,
    TERMINAL,
    Instance,
    JobRecord,
    Parameter,
    Pool,
    Termination,
    iso,
    iso_of,
)
from holdfast_fleet.settings import FleetSettings

INDEX: Final = "status-completed_at-index"
PAUSES_S: Final = (0.1, 0.5, 1.0)
PARAMETERS_PAGE: Final = 50
"""The most that DescribeParameters returns. GetParametersByPath returns ten, with the secrets."""
PARAMETERS_DELETE: Final = 10
"""The most that DeleteParameters takes."""
INSTANCES_FILTER: Final = 200
"""The most values of one filter of DescribeInstances."""
JOBS_DELETE: Final = 25
"""The most that BatchWriteItem takes."""
TEXT_MAX: Final = 300

_CONFIG: Final = Config(
    connect_timeout=3,
    read_timeout=10,
    # The pauses between tries are ours.
    retries={"total_max_attempts": 1, "mode": "standard"},
    max_pool_connections=16,
    user_agent_extra="holdfast-fleet",
)
_DENIED: Final = frozenset(
    "AccessDenied AccessDeniedException UnauthorizedOperation NotAuthorized UnauthorizedAccess "
    "AuthorizationError AuthorizationErrorException".split()
)
_NOT_ACCEPTED: Final = frozenset(
    "ExpiredToken ExpiredTokenException RequestExpired InvalidClientTokenId AuthFailure "
    "UnrecognizedClientException InvalidAccessKeyId SignatureDoesNotMatch "
    "InvalidSignatureException IncompleteSignature MissingAuthenticationToken "
    "MissingAuthenticationTokenException OptInRequired RequestTimeTooSkewed InvalidToken".split()
)
_PASSING: Final = frozenset(
    "Throttling ThrottlingException ThrottledException RequestThrottled RequestLimitExceeded "
    "RequestThrottledException ProvisionedThroughputExceededException TooManyRequestsException "
    "TooManyUpdates LimitExceededException ServiceUnavailable ServiceUnavailableException "
    "InternalError InternalFailure InternalServerError InternalServiceError Unavailable "
    "TransactionInProgressException RequestTimeout SlowDown EC2ThrottledException".split()
)
_KEYS: Final = re.compile(r"\b(?:A[KS]IA|AROA|AIDA)[A-Z0-9]{12,}|\b[A-Za-z0-9/+]{40,}={0,2}")

Item = Mapping[str, Any]
"""An item of DynamoDB with its types, such as {"job_id": {"S": "1"}}."""


class JobConflict(HoldfastError):
    """The record of a job contradicts a termination: a person must look at both."""

    code = "job_conflict"


class HeldLock(NamedTuple):
    """The lock of a task that another run holds."""

    job: str
    expires_at: int


class Deadline:
    """The end of the time that a task may take."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + limit_s

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._end


class AwsFleet:
    """The resources of one fleet. Thread-safe; the clients are created on first use."""

    def __init__(self, settings: FleetSettings, *, pauses_s: Sequence[float] = PAUSES_S) -> None:
        self._jobs = settings.jobs_table
        self._pools = settings.pools_table
        self._region = settings.region
        self._pauses_s = pauses_s
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[str, Any] = {}
        self._ahead_s = 0.0

    def now(self) -> int:
        """Seconds since 1970: by this machine or by AWS, whichever is earlier. A clock that runs
        ahead would make everything look old."""
        return int(time.time() - self._ahead_s)

    def check(self) -> None:
        """Read both tables, so that a program that starts says what is missing. Raises
        ConfigError."""
        jobs = self._table(self._jobs)
        self._check_key(self._jobs, jobs, "job_id")
        self._check_key(self._pools, self._table(self._pools), "pool_name")
        for each in jobs.get("GlobalSecondaryIndexes", ()):
            if each.get("IndexName") == INDEX:
                keys = [key.get("AttributeName") for key in each.get("KeySchema", ())]
                if keys == ["status", "completed_at"]:
                    return
        raise ConfigError(
            f"table {self._jobs} has no index {INDEX} with the hash key status and the range key"
            " completed_at: create it"
        )

    def complete_job(self, message: Termination) -> bool:
        """Write the end of a job into its record, once; False if it is there already, for the same
        instance. Raises JobConflict."""
        names = {
            "#status": "status",
            "#exit": "exit_code",
            "#duration": "duration_seconds",
            "#started": "started_at",
            "#completed": "completed_at",
            "#instance": "instance_id",
        }
        values = {
            ":status": {"S": message.record_status},
            ":exit": {"N": str(message.exit_code)},
            ":duration": {"N": _number(message.duration_seconds)},
            ":started": {"S": iso(message.started_at)},
            ":completed": {"S": iso(message.completed_at)},
            ":instance": {"S": message.instance_id},
        }
        if message.error:
            names["#error"], values[":error"] = "error", {"S": message.error[:ERROR_MAX]}
        # A record without an instance gets it, so that a repeat of this message is recognised.
        assigned = ", ".join(f"{name} = :{name[1:]}" for name in names)
        try:
            self._call(
                "dynamodb",
                "UpdateItem",
                f"table {self._jobs}",
                TableName=self._jobs,
                Key={"job_id": {"S": message.job_id}},
                UpdateExpression=f"SET {assigned}",
                ConditionExpression=(
                    "(#status = :running OR attribute_not_exists(#status)) AND"
                    " (attribute_not_exists(#instance) OR #instance = :instance)"
                ),
                ExpressionAttributeNames=names,
                ExpressionAttributeValues={**values, ":running": {"S": RUNNING}},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except _ConditionFailed as failed:
            known = read_job(failed.item or self._job_item(message.job_id))
            if known.is_terminal and known.instance_id == message.instance_id:
                return False
            raise JobConflict(
                f"job {message.job_id} ended as {message.status} on {message.instance_id}, but its"
                f" record has status {known.status or 'unknown'} and instance"
                f" {known.instance_id or 'unknown'}"
            ) from None
        return True

    def delete_parameter(self, name: str) -> bool:
        """Delete a parameter; False if there is none."""
        try:
            self._call("ssm", "DeleteParameter", f"parameter {name}", Name=name)
        except NotFound:
            return False
        return True

    def delete_parameters(self, names: Sequence[str]) -> list[str]:
        """Delete parameters; those that existed."""
        deleted: list[str] = []
        for batch in _batches(names, PARAMETERS_DELETE):
            answer = self._call(
                "ssm", "DeleteParameters", f"parameters {PARAMETER_PREFIX}*", Names=list(batch)
            )
            deleted += answer.get("DeletedParameters", ())
        return deleted

    def put_metrics(self, metrics: Sequence[Metric]) -> None:
        """Publish metrics. A lost answer makes it publish them again."""
        for request in put_requests(metrics):
            namespace = f"namespace {request['Namespace']}"
            self._call("cloudwatch", "PutMetricData", namespace, **request)

    def managed_instances(self, states: Sequence[str]) -> Iterator[list[Instance]]:
        """Pages of the fleet's instances in these states."""
        return self._instances(
            [
                {"Name": f"tag:{MANAGED_TAG}", "Values": ["true"]},
                {"Name": "instance-state-name", "Values": list(states)},
            ]
        )

    def instances(self, ids: Sequence[str]) -> dict[str, Instance]:
        """The instances with these ids that EC2 still lists, in any state. By a filter: a list of
        ids fails as a whole if one of them is gone."""
        found: dict[str, Instance] = {}
        for batch in _batches(sorted(set(ids)), INSTANCES_FILTER):
            for page in self._instances([{"Name": "instance-id", "Values": list(batch)}]):
                found.update((each.id, each) for each in page)
        return found

    def terminate(self, ids: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Terminate instances: those that this call ended, and errors by instance. One that cannot
        be terminated does not spare the others."""
        try:
            return self._terminated(ids), {}
        except HoldfastError as error:
            if len(ids) == 1:
                return [], {} if isinstance(error, NotFound) else {ids[0]: str(error)}
        ended: list[str] = []
        failed: dict[str, str] = {}
        for id_ in ids:
            more, errors = self.terminate([id_])
            ended += more
            failed |= errors
        return ended, failed

    def parameters(self) -> Iterator[list[Parameter]]:
        """Pages of the runners' parameters, without their values."""
        pages = self._pages(
            "ssm",
            "DescribeParameters",
            f"parameters {PARAMETER_PREFIX}*",
            "NextToken",
            MaxResults=PARAMETERS_PAGE,
            ParameterFilters=[
                {"Key": "Name", "Option": "BeginsWith", "Values": [PARAMETER_PREFIX]}
            ],
        )
        for page in pages:
            yield [
                Parameter(
                    name=str(each["Name"]), modified_at=_seconds(each.get("LastModifiedDate"))
                )
                for each in page.get("Parameters", ())
                if "Name" in each
            ]

    def active_jobs(self, deadline: Deadline) -> list[JobRecord] | None:
        """Every record that is not terminal, as it is now; None if the time was not enough. A scan:
        a record without a completion time is in no index."""
        names = {"#status": "status", "#instance": "instance_id", "#job": "job_id"}
        values = {f":{status}": {"S": status} for status in TERMINAL}
        pages = self._pages(
            "dynamodb",
            "Scan",
            f"table {self._jobs}",
            "ExclusiveStartKey",
            "LastEvaluatedKey",
            TableName=self._jobs,
            ConsistentRead=True,
            ProjectionExpression="#job, #status, #instance",
            FilterExpression=(
                f"attribute_not_exists(#status) OR NOT #status IN ({', '.join(values)})"
            ),
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
        )
        found: list[JobRecord] = []
        for page in pages:
            found += [read_job(item) for item in page.get("Items", ())]
            if deadline.is_over:
                return None
        return found

    def old_jobs(self, before: int) -> Iterator[list[str]]:
        """Pages of ids of terminal records that were completed before this time, by the index.
        It may lag behind the table."""
        for status in TERMINAL:
            pages = self._pages(
                "dynamodb",
                "Query",
                f"index {INDEX} of table {self._jobs}",
                "ExclusiveStartKey",
                "LastEvaluatedKey",
                TableName=self._jobs,
                IndexName=INDEX,
                KeyConditionExpression="#status = :status AND #completed < :before",
                ProjectionExpression="#job",
                ExpressionAttributeNames={
                    "#status": "status",
                    "#completed": "completed_at",
                    "#job": "job_id",
                },
                ExpressionAttributeValues={
                    ":status": {"S": status},
                    ":before": {"S": iso_of(before)},
                },
                Limit=JOBS_DELETE,
            )
            for page in pages:
                yield [read_job(item).job_id for item in page.get("Items", ())]

    def job_items(self, ids: Sequence[str]) -> list[Item]:
        """The whole records with these ids, at most 25, as they are now."""
        keys = [{"job_id": {"S": id_}} for id_ in ids]
        request = {self._jobs: {"Keys": keys, "ConsistentRead": True}} if keys else {}
        found: list[Item] = []
        for answer in self._rounds("BatchGetItem", request, "UnprocessedKeys"):
            found += answer.get("Responses", {}).get(self._jobs, ())
        return found

    def delete_jobs(self, ids: Sequence[str]) -> None:
        """Delete records, at most 25. Those that DynamoDB leaves unprocessed are tried again."""
        deletes = [{"DeleteRequest": {"Key": {"job_id": {"S": id_}}}} for id_ in ids]
        for _ in self._rounds("BatchWriteItem", {self._jobs: deletes}, "UnprocessedItems"):
            pass

    def pools(self) -> list[Pool]:
        """Every pool of the pools table."""
        pages = self._pages(
            "dynamodb",
            "Scan",
            f"table {self._pools}",
            "ExclusiveStartKey",
            "LastEvaluatedKey",
            TableName=self._pools,
            ConsistentRead=True,
        )
        return [
            pool for page in pages for item in page.get("Items", ()) if (pool := read_pool(item))
        ]

    def take_lock(self, task: str, *, owner: str, job: str, expires_at: int) -> HeldLock | None:
        """Take the lock of a task in one conditional write; the other's lock if it is held. A lock
        that ends later than any could was written by a wrong clock, and does not count."""
        now = int(time.time())
        try:
            self._call(
                "dynamodb",
                "PutItem",
                f"table {self._pools}",
                TableName=self._pools,
                Item={
                    "pool_name": {"S": LOCK_PREFIX + task},
                    "owner": {"S": owner},
                    "job": {"S": job},
                    "expires_at": {"N": str(expires_at)},
                },
                ConditionExpression=(
                    "attribute_not_exists(pool_name) OR #expires < :now OR #expires > :latest OR"
                    " #owner = :owner"
                ),
                ExpressionAttributeNames={"#expires": "expires_at", "#owner": "owner"},
                ExpressionAttributeValues={
                    ":now": {"N": str(now)},
                    ":latest": {"N": str(2 * expires_at - now)},
                    ":owner": {"S": owner},
                },
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except _ConditionFailed as failed:
            until = _integer(failed.item, "expires_at")
            return HeldLock(_text(failed.item, "job") or "", expires_at if until is None else until)
        return None

    def release_lock(self, task: str, *, owner: str) -> None:
        """Delete the lock, unless it is another's by now."""
        try:
            self._call(
                "dynamodb",
                "DeleteItem",
                f"table {self._pools}",
                TableName=self._pools,
                Key={"pool_name": {"S": LOCK_PREFIX + task}},
                ConditionExpression="#owner = :owner",
                ExpressionAttributeNames={"#owner": "owner"},
                ExpressionAttributeValues={":owner": {"S": owner}},
            )
        except _ConditionFailed:
            return

    def _job_item(self, job_id: str) -> Item:
        """A record by its id, for a server that does not return it with a failed condition."""
        answer = self._call(
            "dynamodb",
            "GetItem",
            f"table {self._jobs}",
            TableName=self._jobs,
            Key={"job_id": {"S": job_id}},
            ConsistentRead=True,
        )
        return answer.get("Item") or {"job_id": {"S": job_id}}

    def _table(self, name: str) -> dict[str, Any]:
        answer = self._call("dynamodb", "DescribeTable", f"table {name}", TableName=name)
        table: dict[str, Any] = answer.get("Table", {})
        return table

    def _check_key(self, name: str, table: Mapping[str, Any], key: str) -> None:
        keys = [each.get("AttributeName") for each in table.get("KeySchema", ())]
        if keys != [key]:
            raise ConfigError(f"table {name} has the key {', '.join(map(str, keys))}, not {key}")

    def _instances(self, filters: list[dict[str, Any]]) -> Iterator[list[Instance]]:
        pages = self._pages(
            "ec2", "DescribeInstances", "instances", "NextToken", Filters=filters, MaxResults=1000
        )
        for page in pages:
            yield [
                read_instance(each)
                for reservation in page.get("Reservations", ())
                for each in reservation.get("Instances", ())
            ]

    def _terminated(self, ids: Sequence[str]) -> list[str]:
        if not ids:
            return []
        resource = f"instance {ids[0]}" if len(ids) == 1 else "instances"
        answer = self._call("ec2", "TerminateInstances", resource, InstanceIds=list(ids))
        return [
            str(each["InstanceId"])
            for each in answer.get("TerminatingInstances", ())
            if each.get("PreviousState", {}).get("Name") not in ("shutting-down", "terminated")
        ]

    def _rounds(
        self, action: str, request: dict[str, Any], unprocessed: str
    ) -> Iterator[dict[str, Any]]:
        """The answers to a batch and to what it left unprocessed, after growing pauses while
        nothing more is processed."""
        pauses = iter(self._pauses_s)
        while request:
            answer = self._call("dynamodb", action, f"table {self._jobs}", RequestItems=request)
            yield answer
            left = answer.get(unprocessed) or {}
            if left and _size(left) >= _size(request):
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise EngineUnavailable(
                        f"dynamodb:{action} on table {self._jobs}: {_size(left)} items stay"
                        " unprocessed; AWS throttles the table"
                    )
                time.sleep(pause_s)
            request = left

    def _pages(
        self, service: str, action: str, resource: str, token: str, next_: str = "", **given: Any
    ) -> Iterator[dict[str, Any]]:
        while True:
            page = self._call(service, action, resource, **given)
            yield page
            given[token] = page.get(next_ or token)
            if not given[token]:
                return

    def _call(self, service: str, action: str, resource: str, **given: Any) -> dict[str, Any]:
        """One action, tried again if the fault may pass. All of them may be repeated."""
        iam = f"{service}:{action}"
        for pause_s in (*self._pauses_s, None):
            try:
                method = getattr(self._client(service), _method(action))
                answer: dict[str, Any] = method(**given)
            except (ClientError, BotoCoreError, OSError) as error:
                code = _code(error)
                if code == "ConditionalCheckFailedException":
                    raise _ConditionFailed(_item_of(error)) from None
                if pause_s is None or not may_pass(error):
                    raise explained(error, iam, f"{resource} in {self._region}") from None
                time.sleep(pause_s)
            else:
                self._compare_clocks(answer)
                return answer
        raise AssertionError("the last try returns or raises")

    def _client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                # A session is not thread-safe; its clients are.
                self._session = self._session or boto3.session.Session()
                self._clients[service] = self._session.client(
                    service, region_name=self._region, config=_CONFIG
                )
            return self._clients[service]

    def _compare_clocks(self, answer: Mapping[str, Any]) -> None:
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        try:
            told = parsedate_to_datetime(headers.get("date", "")).timestamp()
        except (ValueError, TypeError):
            return
        # The header has whole seconds.
        self._ahead_s = max(0.0, time.time() - told - 1)


class _ConditionFailed(Exception):
    """A conditional write found another state: the item, if the server returned it."""

    def __init__(self, item: Item | None) -> None:
        super().__init__("the condition failed")
        self.item = item


def read_job(item: Item) -> JobRecord:
    """The record of an item; a field of another type is unknown."""
    return JobRecord(
        job_id=_text(item, "job_id") or "",
        instance_id=_text(item, "instance_id"),
        status=_text(item, "status"),
        completed_at=_text(item, "completed_at"),
    )


def read_pool(item: Item) -> Pool | None:
    """The pool of an item; None if it is a lock."""
    name = _text(item, "pool_name")
    if name is None or name.startswith(LOCK_PREFIX):
        return None
    gb = item.get("volume_gb")
    text = gb.get("N", "") if isinstance(gb, Mapping) else ""
    try:
        volume_gb = float(text)
    except ValueError:
        volume_gb = -1.0
    return Pool(
        name=name,
        instance_type=_text(item, "instance_type"),
        volume_gb=volume_gb if 0 <= volume_gb < 1e9 else None,
    )


def read_instance(described: Mapping[str, Any]) -> Instance:
    """An instance as EC2 describes it."""
    tags = {each.get("Key"): each.get("Value") for each in described.get("Tags", ())}
    state = described.get("State", {}).get("Name")
    return Instance(
        id=str(described.get("InstanceId", "")),
        state=state if isinstance(state, str) else None,
        is_managed=tags.get(MANAGED_TAG) == "true",
        launched_at=_seconds(described.get("LaunchTime")),
        pool=tags.get(POOL_TAG),
    )


def may_pass(error: BaseException) -> bool:
    """Whether the same call may succeed in a moment."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 400
        return _code(error) in _PASSING or int(status) >= 500
    final = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, SSOError)
    # The other errors of botocore itself are of the network, or of a role's service.
    return not isinstance(error, (*final, TokenRetrievalError))


def explained(error: BaseException, iam: str, resource: str) -> HoldfastError:
    """The error to raise for a failed call. Texts that AWS writes for refused credentials are left
    out: they repeat parts of the request."""
    where = f"{iam} on {resource}"
    if not isinstance(error, ClientError):
        if isinstance(error, CredentialRetrievalError):
            return EngineUnavailable(f"{where}: the AWS credentials cannot be read")
        if not may_pass(error):
            return ConfigError(
                f"{where}: no AWS credentials ({type(error).__name__}): set AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or give the machine a role"
            )
        return EngineUnavailable(f"{where}: {clean(str(error)) or type(error).__name__}")
    code = _code(error)
    said = clean(str(error.response.get("Error", {}).get("Message", ""))) or "failed"
    if code in _DENIED:
        return ConfigError(
            f"AWS denies {where}: allow the action {iam} in the IAM policy of these credentials,"
            " and check that they are of the right account"
        )
    if code in _NOT_ACCEPTED:
        return ConfigError(
            f"{where}: AWS does not accept the credentials of this process ({code}): renew them,"
            " and check the region and the clock of this machine"
        )
    if code in ("ParameterNotFound", "InvalidInstanceID.NotFound"):
        return NotFound(f"{where}: {said}")
    if code in ("ResourceNotFoundException", "TableNotFoundException"):
        return ConfigError(
            f"{where}: it does not exist in this account and region: create it, or correct the"
            " setting RUNS_FLEET_… that names it"
        )
    if "index" in said and code == "ValidationException":
        return ConfigError(f"{where}: {said}: create the index {INDEX}")
    if may_pass(error):
        return EngineUnavailable(f"{where}: {said} ({code})")
    return UsageError(f"{where}: {said} ({code})")


def clean(text: str) -> str:
    """One bounded line of hostile text, without anything that looks like a key."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    kept = _KEYS.sub("…", re.sub(r"//[^/@\s]+@", "//…@", line))
    return kept if len(kept) <= TEXT_MAX else f"{kept[:TEXT_MAX]}…"


def _code(error: BaseException) -> str:
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition("#")[2]


def _item_of(error: BaseException) -> Item | None:
    found = error.response.get("Item") if isinstance(error, ClientError) else None
    return found if isinstance(found, Mapping) and found else None


@functools.cache
def _method(action: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", action).lower()


def _batches(values: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _size(request: Mapping[str, Any]) -> int:
    """How many items or keys a batch has."""
    return sum(
        len(each["Keys"] if isinstance(each, Mapping) else each) for each in request.values()
    )


def _text(item: Item | None, name: str) -> str | None:
    found = (item or {}).get(name)
    value = found.get("S") if isinstance(found, Mapping) else None
    return value if isinstance(value, str) else None


def _integer(item: Item | None, name: str) -> int | None:
    found = (item or {}).get(name)
    value = found.get("N", "") if isinstance(found, Mapping) else ""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value) else None


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


def _seconds(at: object) -> int | None:
    return int(at.timestamp()) if isinstance(at, datetime) and at.tzinfo is not None else None
