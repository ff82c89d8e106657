"""Preparation before the platform starts: the bucket, Dagster's tables, the limits of the tables' locks.

The service `setup` of compose.yaml runs it at each start. Existing objects are not changed. A bucket is created only on
a server that `AWS_ENDPOINT_URL` names.
"""

import os
import sys
from urllib.parse import urlsplit

import boto3
from botocore.exceptions import BotoCoreError, ClientError


def make_bucket(root: str) -> None:
    """Create the bucket of an address if it does not exist."""
    address = urlsplit(root)
    if address.scheme != "s3" or not os.environ.get("AWS_ENDPOINT_URL"):
        return
    client = boto3.client("s3")
    try:
        client.create_bucket(Bucket=address.netloc)
    except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        return
    print(f"created the bucket {address.netloc}")  # noqa: T201


def main() -> None:
    """Create the bucket, then set the limit of each pool, for which Dagster creates its tables."""
    root = os.environ.get("LAKE_ROOT", "")
    try:
        make_bucket(root)
    except (BotoCoreError, ClientError, ValueError) as error:
        sys.exit(f"the bucket of LAKE_ROOT={root} cannot be created: {error}")
    os.execvp("icedb-dagster", ["icedb-dagster", "pools"])  # noqa: S606


if __name__ == "__main__":
    main()
