"""Requests signed by botocore, as a server receives them."""

from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import botocore.auth
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from holdfast.server.access.sigv4 import SignedRequest

KEY, SECRET = "AKHFAAAABBBBCCCC2345", "s" * 40
NOW = 1_900_000_000_000
MINUTE = 60_000
BODY = b'{"QueueUrl":"http://127.0.0.1:7433/000000000000/mail","MessageBody":"hi"}'

Form = Literal["header", "query"]


def signed(
    form: Form = "header",
    *,
    method: str = "POST",
    url: str = "http://127.0.0.1:7433/",
    body: bytes = BODY,
    headers: dict[str, str] | None = None,
    at_ms: int = NOW,
    region: str = "eu-central-1",
    service: str = "sqs",
    key: str = KEY,
    secret: str = SECRET,
    expires_s: int = 300,
    session: str | None = None,
) -> SignedRequest:
    """A request signed by botocore, as a server receives it."""
    if form == "query":
        body = b""  # botocore would move it into the query
    if headers is None:
        headers = {"X-Amz-Target": "AmazonSQS.SendMessage"} if form == "header" else {}
    request = AWSRequest(method, url, headers=headers, data=body)
    signer = _signer(form, Credentials(key, secret, session), service, region, expires_s)
    with pytest.MonkeyPatch.context() as patch:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
        patch.setattr(botocore.auth, "get_current_datetime", lambda: moment.replace(tzinfo=None))
        signer.add_auth(request)
    target = urlsplit(request.url)
    sent = [(str(key), str(value)) for key, value in request.headers.items()]
    sent.append(("Host", target.netloc))
    return SignedRequest(
        method,
        target.path.encode() or b"/",
        target.query.encode(),
        [(key.lower().encode(), value.encode()) for key, value in sent],
    )


def _signer(form: Form, key: Credentials, service: str, region: str, expires_s: int) -> Any:
    if form == "header":
        return SigV4Auth(key, service, region)
    return SigV4QueryAuth(key, service, region, expires=expires_s)


def changed(request: SignedRequest, **headers: str | None) -> SignedRequest:
    """The request with other headers, of which None removes one."""
    new = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    kept = [(name, value) for name, value in request.headers if name not in new]
    added = [(name, value.encode()) for name, value in new.items() if value is not None]
    return SignedRequest(request.method, request.path, request.query, [*kept, *added])


def header(request: SignedRequest, name: str) -> str:
    return dict(request.headers)[name.encode()].decode()
