"""The header traceparent: valid values name a trace, all others are ignored."""

from __future__ import annotations

import pytest

from icedb.services.http.trace_context import NO_TRACE, TraceContext, trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "value",
    [
        VALID,
        f" {VALID}\t",
        f"00-{TRACE}-{SPAN}-00",
        f"cc-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-of-a-later-version",
    ],
)
def test_a_valid_header_names_a_trace(value: str) -> None:
    headers = [("host", "any"), ("traceparent", value)]
    assert trace_context(headers) == TraceContext(TRACE, SPAN)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        [VALID, VALID],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{TRACE}-{SPAN}-01-more"],
        [f"cc-{TRACE}-{SPAN}-01more"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE.upper()}-{SPAN}-01"],
        [f"00-{TRACE}-{SPAN}"],
        [f"00-{TRACE[1:]}-{SPAN}-01"],
        [f"{VALID}\n"],
        ["x" * 10_000],
    ],
)
def test_any_other_header_is_ignored(values: list[str]) -> None:
    assert trace_context([("traceparent", value) for value in values]) is NO_TRACE
