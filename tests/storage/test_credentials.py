"""Credentials that change while a table is open, on a real S3 server that rejects the old ones."""

from __future__ import annotations

import pickle
import threading
import traceback
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from icedb import Table
from icedb.errors import AccessDenied, InvalidOption, InvalidURI
from icedb.operations.rewrite import prefetch, rewriter
from icedb.sql.connections import MEMORY_BYTES_MIN
from icedb.storage.credentials import Credentials, as_provider
from icedb.storage.location import Location, parse_location
from icedb.storage.obstore_store import fetch
from icedb.writer.part_writer import put_part
from tests.support.object_stores.rotating_keys import RotatingKeys, without_keys
from tests.support.object_stores.stores import ALLOW_ALL, Place, S3Server

pytest_plugins = ["tests.support.object_stores.rotating_keys"]

SECRET = "sEcReT-that-must-not-be-shown"


def check_rotation(table: Table, keys: RotatingKeys) -> None:
    """Check that one table object and one snapshot keep working while the key changes before each step."""
    table.insert([{"n": 1}])
    keys.rotate()
    table.insert([{"n": 2}])
    snapshot = table.snapshot()
    keys.rotate()
    assert sorted(snapshot.to_arrow()["n"].to_pylist()) == [1, 2]
    keys.rotate()
    assert table.merge().merged_parts == 2
    keys.rotate()
    assert table.query("SELECT sum(n) FROM t").fetchall() == [(3,)]
    assert table.verify(deep=True).ok


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_function_is_called_for_the_current_credentials(s3: Place, keys: RotatingKeys) -> None:
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    check_rotation(table, keys)
    assert Table.exists(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    assert len(set(keys.issued)) == 5


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_boto3_session_is_called_for_the_current_credentials(s3: Place, keys: RotatingKeys, profile: str) -> None:
    session = boto3.Session(profile_name=profile)
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=session)
    check_rotation(table, keys)


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_role_is_assumed_once_until_its_credentials_expire(s3_server: S3Server, s3: Place) -> None:
    role = f"role-{uuid.uuid4().hex[:8]}"
    trust = ALLOW_ALL.replace('"Resource":"*"', '"Principal":{"AWS":"*"}')
    arn = s3_server.client("iam").create_role(RoleName=role, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    s3_server.client("iam").put_role_policy(RoleName=role, PolicyName="all", PolicyDocument=ALLOW_ALL)
    results: list[dict[str, Any]] = []

    def assume() -> dict[str, Any]:
        answer = s3_server.client("sts").assume_role(RoleArn=arn, RoleSessionName="tests")["Credentials"]
        names = {"access_key_id": "AccessKeyId", "secret_access_key": "SecretAccessKey", "token": "SessionToken"}
        results.append({name: answer[of_aws] for name, of_aws in names.items()} | {"expires_at": answer["Expiration"]})
        return results[-1]

    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=assume)
    table.insert([{"n": 1}])
    table.insert([{"n": 2}])
    assert table.merge().merged_parts == 2
    assert table.query("SELECT sum(n) FROM t").fetchall() == [(3,)]
    assert len(results) == 1
    wrong = results[0] | {"token": "of another role"}
    with pytest.raises(AccessDenied, match="InvalidToken"):
        Table.open(s3.uri, storage_options=without_keys(s3), credential_provider=lambda: wrong)


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_merge_continues_with_keys_that_change_while_it_runs(
    s3: Place, keys: RotatingKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = without_keys(s3)
    table = Table.create(s3.uri, partition_by=["p"], storage_options=options, credential_provider=keys)
    for n in range(2):
        table.insert([{"p": p, "n": n} for p in range(3)])

    alone = threading.Lock()  # a concurrent request with the earlier key would be rejected

    def putting(*args: Any) -> Any:
        with alone:
            stored = put_part(*args)
            keys.rotate()
        return stored

    def fetching_one(*args: Any) -> None:
        with alone:
            fetch(*args)

    monkeypatch.setattr(rewriter, "put_part", putting)
    monkeypatch.setattr(prefetch, "fetch", fetching_one)
    monkeypatch.setattr(rewriter, "AHEAD_BYTES", 1)  # the third partition is fetched when the first is put
    assert table.merge(memory_bytes=MEMORY_BYTES_MIN).new_parts == 3  # with so little memory, sequentially
    assert table.query("SELECT count(*) FROM t").fetchall() == [(6,)]


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_the_log_in_another_store_is_reached_with_the_same_provider(s3: Place, keys: RotatingKeys) -> None:
    options = without_keys(s3)
    table = Table.create(s3.uri, storage_options=options, credential_provider=keys, log_uri=f"{s3.uri}-log")
    check_rotation(Table.open(s3.uri, storage_options=options, credential_provider=keys), keys)
    assert table.snapshot().rows == 2


@pytest.mark.s3
def test_credentials_are_cached_until_shortly_before_they_expire(s3: Place, keys: RotatingKeys) -> None:
    keys.expires_in = timedelta(hours=1)
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    table.insert([{"n": 1}])
    assert table.query("FROM t").fetchall() == [(1,)]
    assert len(keys.issued) == 1
    keys.rotate()
    with pytest.raises(AccessDenied) as error:  # the provider did not announce the end of this key
        table.insert([{"n": 2}])
    assert keys.now["secret_access_key"] not in str(error.value)


@pytest.mark.s3
def test_without_credentials_requests_are_not_signed(s3: Place) -> None:
    with pytest.raises(AccessDenied):
        Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=lambda: None)
    assert parse_location(s3.uri, None, lambda: None).credentials() is None


def test_the_error_of_a_failing_provider_quotes_nothing() -> None:
    answers: list[Any] = [{"access_key_id": "A", "secret_access_key": SECRET}]

    def provider() -> Any:
        if not answers:
            raise RuntimeError(f"the service returned {SECRET}")
        return answers.pop()

    options = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    with pytest.raises(AccessDenied, match=r"cannot read 't/_table\.json': there are no credentials any more") as later:
        Table.open("s3://b/t", storage_options=options, credential_provider=provider)
    with pytest.raises(AccessDenied, match=r"there are no credentials \(RuntimeError\)\. .* new login") as at_once:
        Table.open("s3://b/t", storage_options=options, credential_provider=provider)
    with pytest.raises(AccessDenied, match=r"the credential_provider gave no access_key_id\. Give a dict") as wrong:
        Table.open("s3://b/t", storage_options=options, credential_provider=lambda: {"key": SECRET})
    for error in (later, at_once, wrong):
        assert SECRET not in "".join(traceback.format_exception(error.value))


def test_valid_credentials_are_used_if_their_renewal_fails() -> None:
    def valid(name: str, minutes: int) -> dict[str, Any]:
        expires_at = datetime.now(UTC) + timedelta(minutes=minutes)
        return {"access_key_id": name, "secret_access_key": SECRET, "expires_at": expires_at}

    broken, incomplete = RuntimeError("the service is away"), {"access_key_id": "incomplete"}
    answers: list[Any] = [valid("first", 4), broken, incomplete, valid("second", 4), valid("late", -1), broken]

    def provider() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    current = as_provider(provider, table="t")
    results = [current() for _ in range(5)]
    assert [c.access_key_id for c in results if c] == ["first", "first", "first", "second", "late"]
    with pytest.raises(AccessDenied, match=r"t: there are no credentials \(RuntimeError\)"):
        current()
    assert not answers


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"access_key_id": "A"}, "gave no secret_access_key"),
        ({"access_key_id": None, "secret_access_key": SECRET}, "gave no access_key_id.* or None instead of the dict"),
        ({"access_key_id": "A", "secret_access_key": SECRET.encode()}, "gave no secret_access_key.* as text"),
        ((SECRET,), "gave a tuple; give a dict, or None"),
        ({"expires_at": datetime(2099, 1, 1)}, "expires_at that is a datetime without a timezone.* in UTC"),
        ({"expires_at": "2099-01-01T00:00:00Z"}, "expires_at that is a str\\. Give a datetime in UTC"),
    ],
)
def test_an_invalid_result_of_a_provider_is_rejected(answer: Any, message: str) -> None:
    if "expires_at" in answer:
        answer = {"access_key_id": "A", "secret_access_key": SECRET, **answer}
    with pytest.raises(AccessDenied, match=f"^s3://b/t: the credential_provider .*{message}") as error:
        as_provider(lambda: answer, table="s3://b/t")()
    assert SECRET not in "".join(traceback.format_exception(error.value))


def test_a_token_has_either_of_its_two_names() -> None:
    pair = {"access_key_id": "A", "secret_access_key": SECRET}
    for tokens, expected in [
        ({"session_token": "T"}, "T"),
        ({"token": "T", "session_token": None}, "T"),
        ({"token": None, "session_token": "T"}, "T"),
        ({"token": ""}, None),
    ]:
        assert as_provider(lambda keys=pair | tokens: keys, table="t")() == Credentials("A", SECRET, expected)


@pytest.mark.parametrize("scheme", ["s3", "memory"])
def test_a_secret_in_the_query_of_an_address_is_not_quoted(scheme: str) -> None:
    with pytest.raises(InvalidURI, match=rf"^'{scheme}://b/p\?\.\.\.' is no table's address") as error:
        parse_location(f"{scheme}://b/p?secret={SECRET}")
    assert SECRET not in "".join(traceback.format_exception(error.value))


@pytest.mark.process
def test_a_task_gets_the_current_credentials_and_no_provider(keys: RotatingKeys) -> None:
    location = parse_location("s3://bucket/table", {"AWS_REGION": "eu-central-1"}, keys)
    sent: Location = pickle.loads(pickle.dumps(location))
    assert sent.provider is None
    assert sent.explicit_credentials == Credentials(*keys.now.values())
    assert (sent.uri, sent.region) == (location.uri, "eu-central-1")
    assert location.storage_options["AWS_SECRET_ACCESS_KEY"] == keys.now["secret_access_key"]
    assert keys.now["secret_access_key"] not in repr(location)


def test_a_provider_is_a_session_or_a_function_and_the_only_source(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="credential_provider must be a Session or a function or None, not a str"):
        Table.open("s3://bucket/table", credential_provider="profile")  # type: ignore[arg-type]
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    with pytest.raises(InvalidOption, match="not both"):
        Table.open("s3://bucket/table", storage_options=keys, credential_provider=lambda: None)
    table = Table.create(tmp_path / "table", credential_provider=lambda: pytest.fail("called for a local table"))
    assert table.insert([{"n": 1}]).rows == 1


def test_the_region_is_that_of_the_session_or_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_location("s3://b/t", None, boto3.Session(region_name="eu-west-1")).region == "eu-west-1"
    (tmp_path / "config").write_text("[default]\nregion = ap-south-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert parse_location("s3://b/t").region == "ap-south-1"
    assert parse_location("s3://b/t", {"AWS_REGION": "eu-north-1"}).region == "eu-north-1"
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(AccessDenied, match=r"s3://b/t: there are no credentials: .*profile \(missing\)"):
        parse_location("s3://b/t")
