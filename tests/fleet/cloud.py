"""The account of a fleet on moto's server, as a test sees and prepares it.

moto is not AWS: its conditional writes are not atomic (see AtomicAws), it launches instances at
once and never runs them, lists them at once, has no IAM unless it is asked to, and never
throttles. Tests that need such things replace a client's answer.
"""

import json
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec

from holdfast.testing.sqs import KEY, REGION
from holdfast_fleet.aws import INDEX, AwsFleet
from holdfast_fleet.model import parameter_name
from holdfast_fleet.settings import FleetSettings
from holdfast_fleet.tasks import Fleet
from tests.engines.sqs.servers import session

JOBS, POOLS = "runs-fleet-jobs", "runs-fleet-pools"
AWS = "http://127.0.0.1:1/000000000000"
DAY_S = 24 * 3600


@cache
def client(service: str, endpoint: str) -> Any:
    return session().client(service, region_name=REGION, endpoint_url=endpoint)


class LaterAws(AwsFleet):
    """moto launches instances now: they are old because it is a day later."""

    def now(self) -> int:
        return super().now() + DAY_S


class AtomicAws(LaterAws):
    """Conditional writes of this process one after the other. DynamoDB checks a condition and
    writes in one step; moto checks, and then writes, and two threads of its server may both win."""

    _writes = threading.Lock()

    def _call(self, service: str, action: str, resource: str, **given: Any) -> dict[str, Any]:
        if action not in ("UpdateItem", "PutItem", "DeleteItem"):
            return super()._call(service, action, resource, **given)
        with self._writes:
            return super()._call(service, action, resource, **given)


class Cloud:
    def __init__(self, moto: str, folder: Path) -> None:
        self.moto = moto
        self.folder = folder
        self.environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": moto,
            "AWS_EC2_METADATA_DISABLED": "true",
            "RUNS_FLEET_TERMINATION_QUEUE_URL": f"{AWS}/runs-fleet-termination",
            "RUNS_FLEET_HOUSEKEEPING_QUEUE_URL": f"{AWS}/runs-fleet-housekeeping",
            "RUNS_FLEET_JOBS_TABLE": JOBS,
            "RUNS_FLEET_POOLS_TABLE": POOLS,
            "RUNS_FLEET_PRICES": '{"gb_month": 0.08, "hourly": {"t4g.medium": 0.0336}}',
        }

    def reset(self) -> None:
        urlopen(Request(f"{self.moto}/moto-api/reset", method="POST"), timeout=30).close()
        self.create_tables()

    def create_tables(self) -> None:
        self.create_table(
            JOBS,
            "job_id",
            AttributeDefinitions=_strings("job_id", "status", "completed_at"),
            GlobalSecondaryIndexes=[
                {
                    "IndexName": INDEX,
                    "KeySchema": _keys("status", "completed_at"),
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            ],
        )
        self.create_table(POOLS, "pool_name", AttributeDefinitions=_strings("pool_name"))

    def create_table(self, name: str, key: str, **more: Any) -> None:
        self.dynamodb.create_table(
            TableName=name, KeySchema=_keys(key), BillingMode="PAY_PER_REQUEST", **more
        )

    @property
    def dynamodb(self) -> Any:
        return client("dynamodb", self.moto)

    @property
    def ec2(self) -> Any:
        return client("ec2", self.moto)

    @property
    def ssm(self) -> Any:
        return client("ssm", self.moto)

    @property
    def cloudwatch(self) -> Any:
        return client("cloudwatch", self.moto)

    @property
    def settings(self) -> FleetSettings:
        return FleetSettings.from_environment(self.environment)

    def fleet(self, kind: type[AwsFleet] = LaterAws, **changes: Any) -> Fleet:
        settings = msgspec.structs.replace(self.settings, **changes)
        return Fleet(settings, kind(settings, pauses_s=(0.0, 0.0, 0.0)))

    def launch(self, *, managed: str | None = "true", pool: str | None = None) -> str:
        tags = {"runs-fleet:managed": managed, "runs-fleet:pool": pool}
        listed = [{"Key": key, "Value": value} for key, value in tags.items() if value is not None]
        specified = [{"ResourceType": "instance", "Tags": listed}] if listed else []
        answer = self.ec2.run_instances(
            ImageId="ami-12c6146b",
            InstanceType="t4g.medium",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=specified,
        )
        id_: str = answer["Instances"][0]["InstanceId"]
        return id_

    def states(self) -> dict[str, str]:
        answer = self.ec2.describe_instances()
        return {
            each["InstanceId"]: each["State"]["Name"]
            for reservation in answer["Reservations"]
            for each in reservation["Instances"]
        }

    def put_parameter(self, instance: str) -> str:
        name = parameter_name(instance)
        self.ssm.put_parameter(Name=name, Value="hush", Type="SecureString")
        return name

    def parameters(self) -> set[str]:
        pages = self.ssm.get_paginator("describe_parameters").paginate()
        return {each["Name"] for page in pages for each in page["Parameters"]}

    def put_job(self, job_id: str, **fields: str | int) -> None:
        item = {
            name: {"N": str(value)} if isinstance(value, int) else {"S": value}
            for name, value in {"job_id": job_id, **fields}.items()
        }
        self.dynamodb.put_item(TableName=JOBS, Item=item)

    def jobs(self) -> dict[str, dict[str, str]]:
        pages = self.dynamodb.get_paginator("scan").paginate(TableName=JOBS)
        found = [item for page in pages for item in page["Items"]]
        plain = [
            {name: next(iter(value.values())) for name, value in item.items()} for item in found
        ]
        return {each["job_id"]: each for each in plain}

    def put_pool(self, name: str, **fields: str | int) -> None:
        item = {
            key: {"N": str(value)} if isinstance(value, int) else {"S": value}
            for key, value in {"pool_name": name, **fields}.items()
        }
        self.dynamodb.put_item(TableName=POOLS, Item=item)

    def locks(self) -> set[str]:
        items = self.dynamodb.scan(TableName=POOLS)["Items"]
        names = (item["pool_name"]["S"] for item in items)
        return {name for name in names if name.startswith("lock#")}

    def metrics(self) -> list[str]:
        """Names and dimensions of the published metrics. moto lists each value."""
        found = self.cloudwatch.list_metrics(Namespace="RunsFleet")["Metrics"]
        return sorted(
            {
                " ".join([each["MetricName"], *(one["Value"] for one in each["Dimensions"])])
                for each in found
            }
        )

    def total(self, name: str, **dimensions: str) -> tuple[float, float]:
        """The sum of a metric's values, and how many were published."""
        now = time.time()
        answer = self.cloudwatch.get_metric_statistics(
            Namespace="RunsFleet",
            MetricName=name,
            Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
            StartTime=now - DAY_S,
            EndTime=now + DAY_S,
            Period=2 * DAY_S,
            Statistics=["Sum", "SampleCount"],
        )
        points = answer["Datapoints"]
        return (
            sum(point["Sum"] for point in points),
            sum(point["SampleCount"] for point in points),
        )


def body(fields: object) -> str:
    return json.dumps(fields)


def _strings(*names: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "AttributeType": "S"} for name in names]


def _keys(hash_: str, range_: str | None = None) -> list[dict[str, str]]:
    keys = [{"AttributeName": hash_, "KeyType": "HASH"}]
    return [*keys, {"AttributeName": range_, "KeyType": "RANGE"}] if range_ else keys
