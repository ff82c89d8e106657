"""The page of a report, without a browser: its content, its size, and that texts of a table stay texts."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from icedb import Pin, Table, Thresholds
from icedb.format.records import LogFile, Marker
from icedb.format.timing import DAY_MS, HOUR_MS
from icedb.operations.health.table_health import PartitionHealth
from icedb.operations.report.document import document_of
from icedb.operations.report.page import render_page
from icedb.operations.report.table_facts import TableFacts, read_facts
from icedb.testing import ClockedStore, ManualClock, create_table
from icedb.util.times import as_of_ms
from tests.support.tables.numbered_rows import put_log

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--"
PAGE_BYTES_MAX = 2_000_000
#: Attributes by which an element may load or run something.
LOADING = {"src", "srcset", "href", "style", "action", "data", "poster", "background", "formaction", "ping"}


class Page(HTMLParser):
    """The elements and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.raw: dict[str, str] = {}
        self._within = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in ("script", "style"):
            self.raw[self._within] = data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def attributes(self, name: str) -> list[str]:
        return [value or "" for _, attributes in self.elements if (value := attributes.get(name)) is not None]


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    table = create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
    for n in range(4):
        table.insert([{"k": k, "n": n} for k in range(3)])
        clock.advance(HOUR_MS)
    return table


def page_of(facts: TableFacts, *connection: str) -> Page:
    return Page(render_page(document_of(facts, connection=connection)))


# ------------------------------------------------------------------------------------------------ the content


def test_the_page_has_all_sections_of_a_table(table: Table, clock: ManualClock) -> None:
    table.merge()
    clock.advance(HOUR_MS)
    table.pin("before-the-drop")
    table.drop_partitions(["k=2"])
    table.alter(sort_by=["n", "k"])
    table.pin("short", expires=clock.now_ms() + 1)
    clock.advance(2 * HOUR_MS)
    page = page_of(read_facts(table.handle, Thresholds(expired_objects=2)))
    snapshot = table.snapshot()
    for text in (
        table.uri,
        "due: cleanup",
        f"icedb cleanup {table.uri}",
        f"rows {snapshot.rows} size",
        "partitions 2 parts 2",
        "k=0 to k=1",
        "Parts by size",
        "log depth",
        "insert",
        "before-the-drop",
        "expired",
        "sort by n, k",
        "partition by k",
        "Each time since the first commit can be read.",
    ):
        assert text in page.text, text
    kinds = {commit.kind for commit in table.history()}
    assert kinds == {"insert", "merge", "drop", "alter"}
    assert {f"op-{kind}" for kind in kinds & {"insert", "merge"}} | {"op-other"} <= set(page.attributes("class"))
    assert len([tag for tag, _ in page.elements if tag == "h2"]) == 7


def test_snapshots_before_the_horizon_are_gone_unless_pinned(table: Table, clock: ManualClock) -> None:
    table.pin("kept")
    pinned_ms = table.pins()[0].as_of_ms
    for _ in range(2):  # the pin needs the parts that the first merge supersedes, but not those of the second
        table.merge()
        clock.advance(HOUR_MS)
        table.insert([{"k": k, "n": 7} for k in range(3)])
    clock.advance(DAY_MS)
    table.cleanup()
    table.insert([{"k": 0, "n": 9}])
    facts = read_facts(table.handle)
    assert facts.health.horizon_ms > pinned_ms
    document = document_of(facts)
    states = {row[0].number: row[2].text for row in document.newest.rows}
    assert states.pop(pinned_ms) == "readable, pinned"
    assert set(states.values()) == {"readable", "gone"}
    for at_ms, state in states.items():
        assert at_ms is not None
        assert (state == "readable") == (at_ms >= facts.health.horizon_ms)
    assert "Older snapshots exist only if pinned." in document.snapshots[0]
    command = re.search(r"--as-of (\S+)", document.snapshot_command)
    assert command is not None
    assert as_of_ms(datetime.fromisoformat(command[1])) == facts.health.horizon_ms
    assert table.query("SELECT count(*) FROM t", as_of=facts.health.horizon_ms).fetchone() == (15,)
    assert 0 < document.readable_from < 1
    assert [name for _, name in document.pins_at] == ["kept"]


def test_columns_of_numbers_are_sorted_by_numbers(table: Table) -> None:
    page = page_of(read_facts(table.handle))
    cells = [attributes for tag, attributes in page.elements if tag == "td"]
    numeric = [attributes for attributes in cells if "number" in (attributes.get("class") or "").split()]
    assert numeric
    assert all(float(attributes["data-number"] or "") >= 0 or "data-last" in attributes for attributes in numeric)


# ------------------------------------------------------------------------------------------------ safety


def test_texts_of_a_table_stay_texts(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["k"])
    table.insert([{"k": HOSTILE, "n": 1, HOSTILE: "x"}])
    facts = read_facts(table.handle)
    partition = PartitionHealth(f"k={HOSTILE}/{HOSTILE}", 1, 1, 1, 1, 1, True, "basis", rows=None)
    health = replace(facts.health, table=f"memory://{HOSTILE}", partitions=(*facts.health.partitions, partition))
    pin = Pin(HOSTILE, facts.health.at_ms - 1, facts.health.at_ms)  # another program may have put such a name
    hostile = replace(facts, health=health, pins=[pin])
    page = page_of(hostile, "--profile", HOSTILE)
    plain = page_of(facts)
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in plain.elements} | {"rect"}
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert page.text.count(HOSTILE) >= 5, "the address, the partition, the column, the pin, the command"
    check_that_nothing_is_loaded(page)


def test_the_page_loads_nothing(table: Table) -> None:
    check_that_nothing_is_loaded(page_of(read_facts(table.handle)))


def check_that_nothing_is_loaded(page: Page) -> None:
    [policy] = [a["content"] or "" for t, a in page.elements if t == "meta" and "http-equiv" in a]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for element in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.raw[element].encode()).digest()).decode()
        assert rules[f"{element}-src"] == f"'sha256-{digest}'"
    assert not re.search(r"url\(|@import|://", page.raw["style"] + page.raw["script"])
    loading = [(n, v) for _, attributes in page.elements for n, v in attributes.items() if n in LOADING]
    assert loading == [("href", "data:,")]
    assert not [n for _, attributes in page.elements for n in attributes if n.startswith("on")]


def test_credentials_and_queries_of_addresses_are_left_out(table: Table) -> None:
    facts = read_facts(table.handle, Thresholds(hot_parts=4, cold_parts=4, log_files=4))
    endpoint = "https://user:s3cret@store.example:9000/path?X-Amz-Signature=s3cret#s3cret"
    page = page_of(facts, "--endpoint-url", endpoint, "--region", "eu-central-1")
    assert "icedb merge-log" in page.text
    assert f"{table.uri} --endpoint-url https://store.example:9000/path --region eu-central-1" in page.text
    assert "s3cret" not in page.text


# ------------------------------------------------------------------------------------------------ large tables


def large(table: Table, parts: int) -> None:
    """Write log files that name parts, without the parts."""
    handle = table.handle
    for n in range(100):
        t_ms = handle.clock.now_ms() + n
        of_file = range(n, parts, 100)
        markers = [Marker(handle.keys.part(f"k={k % 5_000}", f"{k:08}"), 10 * k + 1, t_ms, rows=1) for k in of_file]
        put_log(handle.store, LogFile(t_ms, {"k": "BIGINT"}, tuple(markers)), writer=f"w{n}")


@pytest.mark.long
def test_the_page_of_many_parts_is_small_and_states_what_is_left_out(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["k"])
    large(table, 10_000)
    clock.advance(HOUR_MS)
    facts = read_facts(table.handle)
    page = render_page(document_of(facts))
    assert len(page.encode()) < PAGE_BYTES_MAX / 3
    text = Page(page).text
    for sentence in ("parts 10,000", "5,000 partitions in 1,667 cells", "500 of 5,000 partitions"):
        assert sentence in text


@pytest.mark.long
def test_the_page_of_50_000_partitions_with_long_names_is_small(table: Table) -> None:
    facts = read_facts(table.handle)
    names: list[Any] = [f"{'<' * 300}{n:06}{'&' * 300}" for n in range(50_000)]
    partitions = tuple(PartitionHealth(name, 9, 10**12, 9, 10**9, 10**12, False, name, rows=10**12) for name in names)
    page = render_page(document_of(replace(facts, health=replace(facts.health, partitions=partitions))))
    assert len(page.encode()) < PAGE_BYTES_MAX


def test_only_the_newest_commits_are_read(table: Table) -> None:
    facts = read_facts(table.handle, commits_max=3)
    assert [commit.at_ms for commit in facts.commits] == [commit.at_ms for commit in table.history(limit=3)]
    assert not facts.commits_complete
    assert "The newest 3 commits." in document_of(facts).commits_note
    whole = read_facts(table.handle, commits_max=4)
    assert whole.commits_complete
    assert "All 4 commits" in document_of(whole).commits_note
