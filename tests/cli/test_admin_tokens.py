"""`token create|list|revoke`, `quota set|list|remove` and `audit`: on a store, and on a server."""

import asyncio
import re
from pathlib import Path

import pytest

from holdfast.app.application import Holdfast
from holdfast.ops.tokens import Tokens
from holdfast.process import wall_ms
from tests.cli.program import Cli
from tests.server.server_process import server_process

TOKEN = re.compile(r"hf_[0-9a-f]{12}_[0-9a-f]{64}\n")
ACCESS_KEY = re.compile(
    r"AWS_ACCESS_KEY_ID=(AKHF[A-Z2-7]{16})\nAWS_SECRET_ACCESS_KEY=([A-Za-z0-9]{40})\n"
)


def test_a_token_is_printed_once(cli: Cli) -> None:
    ran = cli("token", "create", "ci", "--scopes", "produce, consume", "--prefix", "mail.")
    assert ran.code == 0
    assert TOKEN.fullmatch(ran.out)
    assert "cannot be shown again" in ran.err
    secret = ran.out.strip().split("_")[2]
    for line in (["token", "list"], ["token", "list", "--json"], ["audit"], ["audit", "--json"]):
        ran = cli(*line)
        assert ran.code == 0
        assert secret not in ran.out + ran.err
    [token] = cli("token", "list", "--json").json
    assert (token["name"], token["scopes"], token["prefix"]) == (
        "ci",
        ["produce", "consume"],
        "mail.",
    )
    assert token["expires_at"] > token["created_at"]


def test_a_token_is_written_to_a_new_private_file(cli: Cli, tmp_path: Path) -> None:
    line = ("token", "create", "ci", "--scopes", "produce", "--out", "ci.token")
    ran = cli(*line)
    assert (ran.code, ran.out) == (0, "")
    file = tmp_path / "ci.token"
    assert TOKEN.fullmatch(file.read_text())
    assert file.stat().st_mode & 0o777 == 0o600
    secret = file.read_text().strip().split("_")[2]
    assert secret not in ran.err
    assert "ci.token" in ran.err
    ran = cli(*line)
    assert ran.code == 2
    assert "is not overwritten" in ran.err
    assert secret in file.read_text()
    assert len(cli("token", "list", "--json").json) == 1, "no token that nobody could know"
    made = cli(*line[:-1], "other.token", "--json").json
    assert "token" not in made


def test_an_access_key_is_printed_once(cli: Cli) -> None:
    ran = cli("token", "create", "ci", "--aws", "--scopes", "produce,consume", "--prefix", "mail.")
    assert ran.code == 0
    found = ACCESS_KEY.fullmatch(ran.out)
    assert found
    assert f"access key {found[1]} is valid until" in ran.err
    for line in (
        ["token", "list"],
        ["token", "list", "--json"],
        ["audit", "--json"],
        ["doctor", "--deep", "--json"],
        ["status", "--json"],
        ["list", "--json"],
        ["dlq", "export"],
        ["config", "list", "--json"],
        ["queue", "list", "--json"],
        ["record", "remove", "token", found[1]],
    ):
        ran = cli(*line)
        assert found[2] not in ran.out + ran.err, line
    [token] = cli("token", "list", "--json").json
    assert (token["id"], token["prefix"]) == (found[1], "mail.")
    assert cli("token", "revoke", found[1]).out == f"revoked token {found[1]}, ci\n"
    assert cli("token", "list", "--json").json == []


def test_an_access_key_is_written_to_a_new_private_file(cli: Cli, tmp_path: Path) -> None:
    line = ("token", "create", "ci", "--aws", "--scopes", "produce")
    made = cli(*line, "--out", "aws.env", "--json").json
    assert "secret_access_key" not in made
    file = tmp_path / "aws.env"
    found = ACCESS_KEY.fullmatch(file.read_text())
    assert found
    assert made["access_key_id"] == made["id"] == found[1]
    assert file.stat().st_mode & 0o777 == 0o600
    ran = cli(*line, "--out", "aws.env")
    assert (ran.code, ran.out) == (2, "")
    made = cli(*line, "--json").json
    assert ACCESS_KEY.fullmatch(
        f"AWS_ACCESS_KEY_ID={made['access_key_id']}\n"
        f"AWS_SECRET_ACCESS_KEY={made['secret_access_key']}\n"
    )


def test_without_a_token_no_file_is_left(cli: Cli, tmp_path: Path) -> None:
    ran = cli("token", "create", "ci", "--scopes", "everything", "--out", "ci.token")
    assert ran.code == 2
    assert not (tmp_path / "ci.token").exists()


def test_scopes_may_be_repeated(cli: Cli) -> None:
    line = ("--scope", "produce", "--scope", "consume", "--scopes", "operate,run-commands")
    assert cli("token", "create", "ci", *line).code == 0
    [token] = cli("token", "list", "--json").json
    assert token["scopes"] == ["produce", "consume", "operate", "run-commands"]


@pytest.mark.parametrize("by", ["id", "name", "token"])
def test_a_token_is_revoked_by_id_name_or_itself(cli: Cli, by: str) -> None:
    made = cli("token", "create", "ci", "--scopes", "operate", "--expires", "never", "--json").json
    assert made["expires_at"] is None
    ran = cli("token", "revoke", made[by])
    assert (ran.code, ran.out) == (0, f"revoked token {made['id']}, ci\n")
    assert made["token"].split("_")[2] not in ran.err
    assert cli("token", "list", "--json").json == []
    ran = cli("token", "revoke", made[by])
    assert ran.code == 3
    assert made["token"].split("_")[2] not in ran.err


def test_tokens_are_stored_in_the_default_namespace(cli: Cli) -> None:
    url = ("--url", "sqlite:///q.db?namespace=b")
    cli("token", "create", "x", "--scopes", "produce", "--namespace", "b", *url)
    [token] = cli("token", "list", "--json", "--url", "sqlite:///q.db").json
    assert token["namespace"] == "b"


@pytest.mark.parametrize(
    "flags",
    [
        ["--scopes", "root"],
        ["--scopes", ""],
        ["--scopes", "produce", "--expires", "soon"],
        ["--scopes", "produce", "--namespace", "a b"],
        ["--scopes", "admin", "--prefix", "mail."],
    ],
    ids=" ".join,
)
def test_invalid_tokens_are_refused(cli: Cli, flags: list[str]) -> None:
    ran = cli("token", "create", "x", *flags)
    assert ran.code == 2
    assert ran.err.count("\n") == 1


def test_quotas_are_set_listed_and_removed(cli: Cli) -> None:
    set_ = cli("quota", "set", "tenant:acme", "--depth", "5", "--rate", "10/s", "--json").json
    assert set_ == {"whose": "tenant:acme", "depth": 5, "rate": "10/s", "bytes": None}
    assert cli("quota", "list", "--json").json == [set_]
    assert cli("quota", "set", "namespace").code == 2
    assert cli("quota", "set", "namespace", "--rate", "fast").code == 2
    assert cli("quota", "remove", "tenant:acme").code == 0
    assert cli("quota", "remove", "tenant:acme").code == 3
    acts = [(act["what"], act["outcome"]) for act in cli("audit", "--json").json]
    assert ("quota.put", "done") in acts
    assert ("quota.remove", "not_found") in acts


def test_an_admin_manages_tokens_through_a_server(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*line: str, url: str = "sqlite:///jobs.db", token: str = "") -> object:
        monkeypatch.setenv("HOLDFAST_URL", url)
        monkeypatch.setenv("HOLDFAST_TOKEN", token)
        ran = cli(*line, "--json")
        return ran.json if ran.code == 0 else (ran.code, ran.err)

    made = run("token", "create", "root", "--scopes", "admin")
    assert isinstance(made, dict)
    admin: str = made["token"]
    with server_process(tmp_path, "--auth") as server:
        there = {"url": server.url, "token": admin}
        made = run("token", "create", "ci", "--scopes", "produce", **there)
        assert isinstance(made, dict)
        refused = run("token", "create", "x", "--scopes", "run-commands", **there)
        assert isinstance(refused, tuple)
        assert "(forbidden)" in refused[1]
        listed = run("token", "list", **there)
        assert isinstance(listed, list)
        assert {each["name"] for each in listed} == {"root", "ci"}
        assert run("quota", "set", "namespace", "--depth", "1", **there) == {
            "whose": "namespace",
            "depth": 1,
            "rate": None,
            "bytes": None,
        }
        mine = {"url": server.url, "token": made["token"]}
        assert isinstance(run("enqueue", "--task", "t", **mine), dict | list)
        over = run("enqueue", "--task", "t", **mine)
        assert isinstance(over, tuple)
        assert "(quota_exceeded)" in over[1]
        assert run("quota", "remove", "namespace", **there) == {"whose": "namespace"}
        gone = run("token", "revoke", made["id"], **there)
        assert isinstance(gone, dict)
        over = run("enqueue", "--task", "t", **mine)
        assert isinstance(over, tuple)
        assert "(unauthenticated)" in over[1]
        acts = run("audit", **there)
        assert isinstance(acts, list)
        assert [act["what"] for act in acts[:3]] == ["token.revoke", "quota.remove", "quota.put"]
        assert {act["who"] for act in acts[:3]} == {"root"}
        for text in (admin.split("_")[2], made["token"].split("_")[2]):
            assert text not in repr((acts, listed, over, refused))


def test_sessions_of_the_dashboard_are_listed_if_asked_for(cli: Cli) -> None:
    made = cli("token", "create", "ann", "--scopes", "observe", "--json").json

    async def sign_in() -> str:
        async with Holdfast("sqlite:///holdfast.db") as app:
            tokens = Tokens(lambda: app.engine, wall_ms)
            [parent] = await tokens.all()
            return (await tokens.create_session(parent))[1].id

    session = asyncio.run(sign_in())
    assert [each["id"] for each in cli("token", "list", "--json").json] == [made["id"]]
    listed = cli("token", "list", "--sessions", "--json").json
    assert [(each["id"], each["parent"]) for each in listed] == [
        (made["id"], None),
        (session, made["id"]),
    ]
    assert f"session of {made['id']}" in cli("token", "list", "--sessions").out
    assert cli("token", "revoke", session).code == 0
    assert cli("token", "list", "--sessions", "--json").json == listed[:1]
