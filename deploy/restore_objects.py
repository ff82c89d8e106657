"""Restore the objects of a table that were deleted from a bucket with versioning.

    python deploy/restore_objects.py s3://lake/events --since 2027-01-14T10:00Z --until 2027-01-14T10:05Z --dry-run

It removes the delete markers that are the newest versions below the address, and were put in that time. Choose a time
in which no cleanup of the table ran: an object that a cleanup has deleted must stay deleted. Stop writers and
maintenance first, and run `icedb verify --deep` afterwards. The keys come from the usual chain of AWS, and need
`s3:ListBucketVersions` and `s3:DeleteObjectVersion`, which no role of deploy/iam has.
"""

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.exceptions import BotoCoreError, ClientError

# The limit of one request.
KEYS_MAX = 1_000


def parse_time(text: str) -> datetime:
    """Return a time with a zone. Raises ValueError."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(text)
    return time.astimezone(UTC)


def deleted_objects(
    client: Any, bucket: str, prefix: str, since: datetime, until: datetime | None
) -> Iterator[dict[str, str]]:
    """Yield the key and version of each delete marker in that time that is the newest version of its key."""
    pages = client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    for marker in (marker for page in pages for marker in page.get("DeleteMarkers", ())):
        if (
            marker["IsLatest"]
            and since <= marker["LastModified"]
            and (until is None or marker["LastModified"] <= until)
        ):
            yield {"Key": marker["Key"], "VersionId": marker["VersionId"]}


def main() -> None:
    """Restore the objects, and print their keys."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", help="the address of the table, s3://bucket/prefix")
    parser.add_argument("--since", required=True, type=parse_time, help="with a time zone, such as 2027-01-14T10:00Z")
    parser.add_argument("--until", type=parse_time, help="as --since [now]")
    parser.add_argument("--dry-run", action="store_true", help="only print the keys")
    options = parser.parse_args()
    address = urlsplit(options.table)
    prefix = address.path.strip("/")
    if address.scheme != "s3" or not prefix:
        parser.error(f"{options.table} is no address of a table in a bucket: s3://bucket/prefix")
    client, restored = boto3.client("s3"), 0
    try:
        deleted = list(deleted_objects(client, address.netloc, f"{prefix}/", options.since, options.until))
        for start in range(0, len(deleted), KEYS_MAX):
            some = deleted[start : start + KEYS_MAX]
            if not options.dry_run:
                answer = client.delete_objects(Bucket=address.netloc, Delete={"Objects": some})
                if errors := answer.get("Errors"):
                    sys.exit(f"{errors[0]['Key']} cannot be restored: {errors[0]['Code']}; restored: {restored}")
            restored += len(some)
            print(*(marker["Key"] for marker in some), sep="\n")  # noqa: T201
    except (BotoCoreError, ClientError) as error:
        sys.exit(f"{options.table}: {error}; restored: {restored}")
    print(f"{'would restore' if options.dry_run else 'restored'}: {restored} objects", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
