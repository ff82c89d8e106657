"""The access log: the contents of lines, redacted secrets, and writers that never wait for a blocked stream."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import select
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import boto3
import pytest
from botocore.config import Config

from icedb.services.http.log_lines import LineWriter, TextLines
from icedb.services.proxy.access_log import ProxyAccessRecord, access_line
from tests.support.proxy.proxy_process import ROOT, proxy_command
from tests.support.waiting import SECONDS_MAX, wait_until

KEY = "ACMEKEY1"
#: More than a pipe holds.
MANY = 2_000


# ------------------------------------------------------------------------------------------------ a line


def record(**changes: Any) -> ProxyAccessRecord:
    usual: dict[str, Any] = {
        "time_ms": 1_795_000_000_007, "request_id": "R1", "client": "127.0.0.1", "tenant": "acme",
        "access_key_id": KEY, "method": "GET", "host": "localhost", "path": "/events/a", "query": "", "range": None,
        "status": 200, "code": "", "bytes": 7, "milliseconds": 1.26, "user_agent": "test",
    }  # fmt: skip
    return ProxyAccessRecord(**{**usual, **changes})


def line_of(**changes: Any) -> dict[str, Any]:
    line = access_line(record(**changes))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    fields: dict[str, Any] = json.loads(line)
    return fields


def test_a_line_of_the_access_log() -> None:
    assert line_of() == {
        "time": "2026-11-18T11:06:40.007Z", "request_id": "R1", "client": "127.0.0.1", "tenant": "acme",
        "access_key_id": KEY, "method": "GET", "host": "localhost", "path": "/events/a", "query": "", "range": None,
        "status": 200, "code": "", "bytes": 7, "milliseconds": 1.3, "user_agent": "test", "trace_id": None,
        "span_id": None,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["X-Amz-Signature", "x-amz-credential", "X-Amz-Security-Token", "AWSAccessKeyId",
                                  "Signature", "X%2DAmz%2DSignature"])  # fmt: skip
@pytest.mark.parametrize("equals", ["=", "%3D"])
def test_secrets_of_a_query_are_redacted(name: str, equals: str) -> None:
    query = line_of(query=f"prefix=a&{name}{equals}hidden%2Fhidden=&list-type=2&{name}{equals}hidden")["query"]
    assert "hidden" not in query
    assert query.startswith("prefix=a&")
    assert query.count("=...") == 2
    assert "&list-type=2&" in query


def test_a_presigned_url_in_a_path_is_redacted() -> None:
    line = line_of(path="/events/a%3FX-Amz-Signature=hidden", query="")
    assert line["path"] == "/events/a%3F..."


def test_lines_are_escaped_and_truncated() -> None:
    line = line_of(path="/" + "a" * 9_000, query="q=" + "b" * 9_000, user_agent='x\n\x1b[2J\x9b1m"\udc80' + "c" * 9_000)
    assert [len(line[name]) for name in ("path", "query")] == [2_000, 2_000]
    assert line["user_agent"].startswith('x\\n\\x1b[2J\\x9b1m"\\udc80c')
    assert line["user_agent"].isprintable()


# ------------------------------------------------------------------------------------------------ the writer


def line(number: int) -> bytes:
    return b"%06d %s\n" % (number, b"x" * 200)


LINES = [line(n) for n in range(MANY)]


class Pipe:
    """A pipe. Its writing end is a stream like the proxy's standard output; only `read_lines` reads the other end."""

    def __init__(self) -> None:
        self.reads, writes = os.pipe()
        self.stream = io.FileIO(writes, "wb")

    def read_lines(self, count: int) -> list[bytes]:
        read = b""
        while read.count(b"\n") < count:
            assert select.select([self.reads], [], [], SECONDS_MAX)[0], "no line arrived"
            read += os.read(self.reads, 65_536)
        return read.splitlines(keepends=True)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.reads)  # ends a writer that still waits


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "access log" in r.getMessage()]


def written(stream: BinaryIO, lines: list[bytes], **changes: Any) -> LineWriter:
    writer = LineWriter(stream, "access log", **changes)
    for each in lines:
        writer.write(each)
    writer.close(SECONDS_MAX)
    return writer


def test_lines_are_whole_and_in_order() -> None:
    stream = io.BytesIO()
    assert written(stream, LINES).lost == 0
    assert stream.getvalue() == b"".join(LINES)


def test_writing_lines_does_not_wait_for_the_reader(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    writer = LineWriter(pipe.stream, "access log", buffered_bytes_max=MANY * len(LINES[0]))
    for each in LINES * 2:
        writer.write(each)  # would block for ever if it waited
    lost = writer.lost
    assert MANY - 65_536 / len(LINES[0]) - 1 <= lost <= MANY, "all lines except those in the buffer and in the pipe"
    assert reports(caplog) == ["The access log has no reader; lines are dropped. Requests are still served."], "once"
    assert set(pipe.read_lines(2 * MANY - lost)) == set(LINES), (
        "lines that were not dropped arrive when the pipe is read"
    )
    writer.write(line(7))
    assert pipe.read_lines(1) == [line(7)], "and so do later lines"
    writer.close(SECONDS_MAX)
    assert writer.lost == lost


def test_a_stream_without_a_reader_does_not_delay_the_exit(pipe: Pipe) -> None:
    writer = LineWriter(pipe.stream, "access log")
    for each in LINES:
        writer.write(each)
    assert writer.lost == 0
    writer.close(0.1)
    in_the_pipe = 65_536 // len(LINES[0])
    assert writer.lost >= MANY - in_the_pipe - 20, "unwritten lines are counted, except those being written"
    lost = writer.lost
    writer.write(line(1))
    assert writer.lost == lost + 1


def test_a_nonblocking_pipe_loses_no_line(pipe: Pipe) -> None:
    fcntl.fcntl(pipe.stream, fcntl.F_SETFL, os.O_WRONLY | os.O_NONBLOCK)
    writer = LineWriter(pipe.stream, "access log")
    for each in LINES:
        writer.write(each)
    wait_until(lambda: not select.select([], [pipe.stream], [], 0)[1], "it is not full: nothing is shown here")
    assert pipe.read_lines(MANY) == LINES
    writer.close(SECONDS_MAX)
    assert writer.lost == 0


class Reluctant(io.RawIOBase):
    """A stream that takes seven bytes at a time, and fails at given writes."""

    def __init__(self, *failing: int) -> None:
        self.taken = b""
        self.calls = 0
        self._failing = failing

    def write(self, data: Any) -> int:
        self.calls += 1
        if self.calls in self._failing:
            raise OSError(28, "No space left on device")
        self.taken += bytes(data[:7])
        return len(data[:7])


def test_partial_writes_are_completed() -> None:
    stream = Reluctant()
    assert written(stream, LINES[:50]).lost == 0  # type: ignore[arg-type]
    assert stream.taken == b"".join(LINES[:50])


def test_the_line_after_a_partial_line_is_separate() -> None:
    stream = Reluctant(3)
    writer = LineWriter(stream, "access log")  # type: ignore[arg-type]
    writer.write(b"a line of more than fourteen\n")
    wait_until(lambda: writer.lost == 1, "the line that was torn is not counted")
    writer.write(b"next\n")
    writer.close(SECONDS_MAX)
    assert stream.taken == b"a line of more\nnext\n"
    assert writer.lost == 1


def test_a_write_error_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        writer = LineWriter(full, "access log")
        for number in range(3):
            writer.write(LINES[number])
            wait_until(lambda number=number: writer.lost == number + 1, "it is not counted")  # type: ignore[misc]
        writer.close(SECONDS_MAX)
    assert writer.lost == 3
    assert reports(caplog) == ["The access log cannot be written: No space left on device. Requests are still served."]


def test_logging_writes_lines() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream, "log")
    handler = logging.StreamHandler(TextLines(writer))
    for text in ("grün", "half a surrogate \udc80"):
        handler.emit(logging.LogRecord("icedb.proxy", logging.INFO, "", 0, text, None, None))
    writer.close(SECONDS_MAX)
    assert stream.getvalue() == "grün\nhalf a surrogate \\udc80\n".encode()


# ------------------------------------------------------------------------------------------------ the process


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_proxy_without_readers_of_its_output_responds_and_exits(tmp_path: Path) -> None:
    """Neither the access log nor the log, in which each request fails, is read: the pipes are soon full."""
    config = tmp_path / "proxy.toml"
    config.write_text(
        '[server]\nlisten = "127.0.0.1:0"\n'
        '[control_plane]\nurl = "http://127.0.0.1:1/nobody"\ntables = ["s3://lake"]\ntoken_env = "TOKEN"\n'
    )
    process = subprocess.Popen(
        proxy_command(config),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "TOKEN": "a-token-of-some-length", "NO_PROXY": "127.0.0.1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        guard = threading.Timer(SECONDS_MAX, process.kill)  # a hanging process would block the test for ever
        guard.start()
        try:
            endpoint = process.stderr.readline().decode().partition("listening on ")[2].partition(";")[0]
            for pipe in (process.stdout, process.stderr):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
            s3 = boto3.client(
                "s3",
                endpoint_url=endpoint,
                aws_access_key_id=KEY,
                aws_secret_access_key="secret",
                region_name="us-east-1",
                config=Config(signature_version="s3v4"),
            )
            url = s3.generate_presigned_url("list_objects_v2", Params={"Bucket": "events"})
            for _ in range(100):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(url, timeout=SECONDS_MAX)
                refused.value.close()
                assert refused.value.code == 503
            assert len(select.select([process.stdout, process.stderr], [], [], 0)[0]) == 2, "both pipes have output"
            process.terminate()
            assert process.wait() == 0
        finally:
            guard.cancel()
            process.kill()
