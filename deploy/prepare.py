"""What comes before the platform's processes: the bucket, Dagster's tables, the limits of the tables' locks.

Run by the service `setup` of compose.yaml each time the platform is started. What is there already stays as it is. A
bucket is made only on a server of one's own, which `AWS_ENDPOINT_URL` names.
"""

import os
import sys
from urllib.parse import urlsplit

import boto3
from botocore.exceptions import BotoCoreError, ClientError


def make_bucket(root: str) -> None:
    """Make the bucket of an address, if there is none."""
    address = urlsplit(root)
    if address.scheme != "s3" or not os.environ.get("AWS_ENDPOINT_URL"):
        return
    client = boto3.client("s3")
    try:
        client.create_bucket(Bucket=address.netloc)
    except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        return
    print(f"made the bucket {address.netloc}")  # noqa: T201


def main() -> None:
    """Make the bucket, then give each pool its limit, for which Dagster makes its tables."""
    root = os.environ.get("LAKE_ROOT", "")
    try:
        make_bucket(root)
    except (BotoCoreError, ClientError, ValueError) as error:
        sys.exit(f"the bucket of LAKE_ROOT={root} cannot be made: {error}")
    os.execvp("icedb-dagster", ["icedb-dagster", "pools"])  # noqa: S606


if __name__ == "__main__":
    main()
