"""A minimal program of IceDB v3 for tests: it inserts, merges, drops and reads without the library.

It follows the rules of v3 programs: they list `_log/` and read every log file in the order of the names, and the last
marker of a part decides whether it is live. They take no claims, know no epochs, count no lines, and overwrite
existing objects. Paths of partitions are the unchanged result of the program's function.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import boto3
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.object_stores.stores import Place

Row = Mapping[str, Any]


class Objects(Protocol):
    """The requests of a v3 program to a store."""

    def put(self, key: str, body: bytes) -> None: ...

    def get(self, key: str) -> bytes: ...

    def list(self, prefix: str) -> list[str]: ...


@dataclass(frozen=True)
class FolderObjects:
    """A local folder."""

    root: Path

    def put(self, key: str, body: bytes) -> None:
        (self.root / key).parent.mkdir(parents=True, exist_ok=True)
        (self.root / key).write_bytes(body)

    def get(self, key: str) -> bytes:
        return (self.root / key).read_bytes()

    def list(self, prefix: str) -> list[str]:
        return sorted(p.relative_to(self.root).as_posix() for p in (self.root / prefix).rglob("*") if p.is_file())


class BucketObjects:
    """A bucket, over HTTP."""

    def __init__(self, bucket: str, options: Mapping[str, str]) -> None:
        self.bucket = bucket
        self.s3: Any = boto3.client(
            "s3",
            endpoint_url=options["AWS_ENDPOINT_URL"],
            aws_access_key_id=options["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=options["AWS_SECRET_ACCESS_KEY"],
            region_name=options["AWS_REGION"],
        )

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)

    def get(self, key: str) -> bytes:
        body: bytes = self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return body

    def list(self, prefix: str) -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return sorted(listed["Key"] for page in pages for listed in page.get("Contents", ()))


@dataclass
class V3State:
    """The state of the log by the rules of v3. `markers`: the last marker of each part. `named_in`: its log files."""

    schema: dict[str, str] = field(default_factory=dict)
    markers: dict[str, dict[str, Any]] = field(default_factory=dict)
    named_in: dict[str, list[str]] = field(default_factory=dict)
    log_files: list[str] = field(default_factory=list)

    @property
    def live(self) -> list[str]:
        return sorted(p for p, m in self.markers.items() if "tmb" not in m)

    def in_partition(self, partition: str) -> list[str]:
        return [p for p in self.live if p.rpartition("/")[0].endswith(f"_data/{partition}")]


class V3Program:
    """A writer and reader. `now` returns unix milliseconds that rise with each call."""

    def __init__(self, objects: Objects, prefix: str, now: Callable[[], int], host: str = "v3-host") -> None:
        self.objects, self.prefix, self.now, self.host = objects, prefix, now, host
        self._parts = 0

    @classmethod
    def at(cls, place: Place, now: Callable[[], int], host: str = "v3-host") -> V3Program:
        """Return a program for the table at a place of the fixtures."""
        if place.storage_options is None:
            return cls(FolderObjects(Path(place.uri)), "", now, host)
        bucket, _, prefix = place.uri.removeprefix("s3://").partition("/")
        return cls(BucketObjects(bucket, place.storage_options), f"{prefix}/", now, host)

    def insert(self, partitions: Mapping[str, Sequence[Row]], schema: Mapping[str, str]) -> str:
        """Write a part for each partition and one log file. Returns its key."""
        t = self.now()
        return self._log_file(t, schema, [self._part(path, rows, t) for path, rows in partitions.items()])

    def merge(self, partition: str) -> str:
        """Merge a partition's parts into one. Replaces the log files that name them, with all their content."""
        state, t = self.read(), self.now()
        inputs = state.in_partition(partition)
        rows = [row for path in inputs for row in self._rows(path)]
        replaced = sorted({key for path in inputs for key in state.named_in[path]})
        carried = [p for p, names in state.named_in.items() if set(names) & set(replaced)]
        markers = [state.markers[p] | ({"tmb": t} if p in inputs else {}) for p in carried]
        return self._log_file(t, state.schema, [*markers, self._part(partition, rows, t)], replaced)

    def drop(self, partition: str) -> str:
        """Tombstone a partition's parts. Their log files are replaced, but not all markers are carried."""
        state, t = self.read(), self.now()
        dead = state.in_partition(partition)
        replaced = sorted({key for path in dead for key in state.named_in[path]})
        return self._log_file(t, state.schema, [state.markers[p] | {"tmb": t} for p in dead], replaced)

    def _part(self, partition: str, rows: Sequence[Row], t: int) -> dict[str, Any]:
        self._parts += 1
        body = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), body)
        key = f"{self.prefix}_data/{partition}/{self.host}-{t}-{self._parts}.parquet"
        self.objects.put(key, body.getvalue())
        return {"p": key, "b": len(body.getvalue()), "t": t}

    def _log_file(self, t: int, schema: Mapping[str, str], markers: Sequence[Row], replaced: Sequence[str] = ()) -> str:
        header = {"v": "1", "t": t, "sch": 1, "f": 2 + len(replaced)} | ({"tmb": 2} if replaced else {})
        lines = [header, schema, *({"p": key, "t": t} for key in replaced), *markers]
        key = f"{self.prefix}_log/{t}{'_m' if replaced else ''}_{self.host}.jsonl"
        self.objects.put(key, "\n".join(map(json.dumps, lines)).encode())
        return key

    def read(self) -> V3State:
        """Read every log file in the order of the names. An unreadable or empty line is an error."""
        reading = V3State(log_files=self.objects.list(f"{self.prefix}_log/"))
        for key in reading.log_files:
            lines = [json.loads(line) for line in self.objects.get(key).decode().split("\n")]
            header = lines[0]
            assert str(header["v"]) == "1"
            for column, type_ in lines[header["sch"]].items():
                assert reading.schema.setdefault(column, type_) == type_
            for marker in lines[header["f"] :]:
                reading.markers[marker["p"]] = marker
                reading.named_in.setdefault(marker["p"], []).append(key)
        return reading

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all live parts."""
        return [row for path in self.read().live for row in self._rows(path)]

    def _rows(self, path: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = pq.read_table(io.BytesIO(self.objects.get(path))).to_pylist()
        return listed
