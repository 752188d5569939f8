"""A pytest plugin for moto's own environment: its tests, in moto's server mode, call Holdfast.

The tests expect the URL http://localhost:5000 and the account 123456789012. Connections to that
address go to `HOLDFAST_ADDRESS`, the access key names the account, and STS, which Holdfast is not,
answers from here.
"""

import os
from typing import Any

import urllib3.util.connection
from botocore.client import BaseClient
from moto.core.models import MockAWS

ACCOUNT = "123456789012"
OTHER_ACCOUNT = "111111111111"
STS = {
    "GetCallerIdentity": {"Account": ACCOUNT},
    "AssumeRole": {
        "Credentials": {
            "AccessKeyId": OTHER_ACCOUNT,
            "SecretAccessKey": "test",
            "SessionToken": "test",
        }
    },
}

_connect = urllib3.util.connection.create_connection
_call = BaseClient._make_api_call
_init = MockAWS.__init__


def connect(address: tuple[str, int], *rest: Any, **more: Any) -> Any:
    host, _, port = os.environ["HOLDFAST_ADDRESS"].rpartition(":")
    assert address == ("localhost", 5000), f"{address} is not the address of the tests"
    return _connect((host, int(port)), *rest, **more)


def call(client: Any, action: str, members: Any) -> Any:
    if client.meta.service_model.service_name == "sts":
        return STS[action]
    return _call(client, action, members)


def init(mock: Any, *rest: Any, **more: Any) -> None:
    _init(mock, *rest, **more)
    mock._fake_creds = {**mock._fake_creds, "AWS_ACCESS_KEY_ID": ACCOUNT}


urllib3.util.connection.create_connection = connect
BaseClient._make_api_call = call
MockAWS.__init__ = init
