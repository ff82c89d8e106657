"""Keys that expire while a client uses them, for the tests of renewed credentials.

A module takes the fixtures with `pytest_plugins = ["tests.support.object_stores.rotating_keys"]`.
"""

from __future__ import annotations

import json
import shlex
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.object_stores.stores import ALLOW_ALL, Place, S3Server


class RotatingKeys:
    """A user of the S3 server with one key at a time."""

    def __init__(self, server: S3Server) -> None:
        self.iam, self.user = server.client("iam"), f"rotating-{uuid.uuid4().hex[:8]}"
        self.iam.create_user(UserName=self.user)
        self.iam.put_user_policy(UserName=self.user, PolicyName="all", PolicyDocument=ALLOW_ALL)
        self.expires_in = timedelta(minutes=1)  # less than is left before something is renewed
        self.issued: list[str] = []
        self.now: dict[str, Any] = {}
        self.rotate()

    def rotate(self) -> None:
        """Create a new key and delete the old one."""
        new = self.iam.create_access_key(UserName=self.user)["AccessKey"]
        if self.now:
            self.iam.delete_access_key(UserName=self.user, AccessKeyId=self.now["access_key_id"])
        self.now = {"access_key_id": new["AccessKeyId"], "secret_access_key": new["SecretAccessKey"]}

    def __call__(self) -> dict[str, Any]:
        """Return the credentials, as obstore's providers do."""
        self.issued.append(self.now["access_key_id"])
        return {**self.now, "expires_at": datetime.now(UTC) + self.expires_in}


@pytest.fixture
def keys(s3_server: S3Server) -> RotatingKeys:
    """Create a user for the test, and return its keys."""
    return RotatingKeys(s3_server)


@pytest.fixture
def profile(keys: RotatingKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a profile whose credentials a program prints. boto3 runs it again before they expire."""
    credentials_file = tmp_path / "told.json"
    program = tmp_path / "program.py"
    program.write_text(f"print(open({str(credentials_file)!r}).read())")
    command = shlex.join([sys.executable, "-S", str(program)])
    (tmp_path / "config").write_text(f"[profile rotating]\ncredential_process = {command}\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def tell() -> None:
        credentials_file.write_text(
            json.dumps(
                {
                    "Version": 1,
                    "AccessKeyId": keys.now["access_key_id"],
                    "SecretAccessKey": keys.now["secret_access_key"],
                    "Expiration": (datetime.now(UTC) + timedelta(minutes=1)).isoformat(),
                }
            )
        )

    rotate = keys.rotate
    monkeypatch.setattr(keys, "rotate", lambda: (rotate(), tell()))
    tell()
    return "rotating"


def without_keys(place: Place) -> dict[str, str]:
    """Return the storage options of a place without its keys."""
    return {k: v for k, v in (place.storage_options or {}).items() if "KEY" not in k}
