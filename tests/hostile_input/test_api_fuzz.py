"""Wrong types and values in every public call raise only errors of the tree, and a failing call changes nothing."""

from __future__ import annotations

import collections
import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from icedb import Table, Timing
from icedb.cli import app
from icedb.errors import IceDBError, InvalidArgument, InvalidOption, InvalidQuery
from icedb.util.arguments import checks_arguments
from icedb.writer.spec_options import SpecOptions
from tests.support.attacks.api_fuzz import SECRET, Escape, FuzzTarget, cases, entries, try_case

#: The short run's seeds are others than those of the long one.
SHORT, LONG = range(10_000, 10_104), range(2_000)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FuzzTarget]:
    """A world whose relative paths stay in it."""
    folder = tmp_path / "cwd" / "a" / "b" / "c" / "d"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    made = FuzzTarget(tmp_path)
    yield made
    made.renew()


def play(world: FuzzTarget, seeds: range) -> collections.Counter[str | None]:
    """Return the outcomes of the cases. Fail if one of them escapes."""
    outcomes: collections.Counter[str | None] = collections.Counter()
    escapes = []
    for case in cases(seeds, world):
        outcome = try_case(world, case)
        if isinstance(outcome, Escape):
            escapes.append(str(outcome))
        else:
            outcomes[outcome] += 1
    assert not escapes, f"{len(escapes)} of {len(seeds)}:\n" + "\n".join(escapes)
    return outcomes


@pytest.mark.long
def test_only_errors_of_the_tree_escape(world: FuzzTarget) -> None:
    outcomes = play(world, SHORT)
    assert outcomes["InvalidArgument"] > 20
    assert outcomes[None] > 5


@pytest.mark.slow(seconds=60)
def test_only_errors_of_the_tree_escape_from_two_thousand_calls(world: FuzzTarget) -> None:
    outcomes = play(world, LONG)
    assert len(outcomes) > 10


def test_every_public_call_is_among_the_entries() -> None:
    names = {entry.name for entry in entries()}
    public = [n for n, m in inspect.getmembers(Table) if not n.startswith("_") and callable(m)]
    assert {f"Table.{n}" for n in public} <= names
    assert {"Snapshot.query", "QueryResult.fetchmany", "BufferedWriter.submit", "IceDBv3.merge", "Timing"} <= names


def test_the_oracle_detects_each_kind_of_escape(world: FuzzTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault of a call is an escape: a library's error, a change, a secret, an empty message."""

    def outcome_of(error: Exception | None) -> object:
        def pins(self: Table) -> None:
            if error is None:
                self.insert([{"a": 5}])
                raise InvalidOption(f"{self.uri}: this fails, and has written a row.")
            raise error

        monkeypatch.setattr(Table, "pins", pins)
        entry = next(e for e in entries() if e.name == "Table.pins")
        return try_case(world, type(next(cases(range(1), world)))(0, entry, {}))

    for error in (
        KeyError("x"),
        InvalidOption(""),
        None,
        InvalidOption(f"text text text <object object at 0x7f {SECRET}"),
    ):
        assert isinstance(outcome_of(error), Escape)
    assert outcome_of(InvalidOption("a message with the next step")) == "InvalidOption"


# ------------------------------------------------------------------------------------------------ the rule of arguments


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda t: t.merge(part_bytes_max="1 GB"), "part_bytes_max"),
        (lambda t: t.cleanup(grace_ms=1.5), "grace_ms"),
        (lambda t: t.drop_partitions(["p=1", 2]), "partitions"),
        (lambda t: t.alter(row_id="yes"), "row_id"),
        (lambda t: t.verify(deep=1), "deep"),
        (lambda t: t.insert([{"a": 1}], txn=("app", "1")), "txn"),
        (lambda t: t.merge(engine="spark"), "engine"),
        (lambda t: t.query("SELECT 1").fetchmany("2"), "size"),
        (lambda t: Timing(grace_ms="1h"), "grace_ms"),
        (lambda t: Table.open(t.uri, storage_options={"AWS_SECRET_ACCESS_KEY": [SECRET]}), "storage_options"),
        (lambda t: Table.open(t.uri, storage_options=SECRET), "storage_options"),
    ],
)
def test_an_argument_of_another_type_is_named(world: FuzzTarget, call: Callable[[Table], object], names: str) -> None:
    with pytest.raises(InvalidArgument, match=names) as caught:
        call(world.table)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, InvalidOption)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None
    assert world.contents() == world.before


def test_a_wrong_type_in_an_alter_leaves_the_table_readable(world: FuzzTarget) -> None:
    """If it were recorded in the log, no program could read the table."""
    with pytest.raises(InvalidArgument):
        world.table.alter(row_id="x")  # type: ignore[arg-type]
    assert Table.open(world.table.uri).snapshot().rows == 3


def test_a_text_with_a_nul_character_or_a_surrogate_is_rejected(world: FuzzTarget) -> None:
    """DuckDB and the operating system treat a NUL character as the end of the text."""
    for call in (lambda t: t.delete("a = 1\0 AND s = 'nope'"), lambda t: t.query("SELECT 1\0 FROM nope")):
        with pytest.raises(InvalidOption, match="NUL"):
            call(world.table)
    with pytest.raises(InvalidOption, match="surrogate"):
        Table.create(world.fresh(), partition_by=["a AS \ud800"])
    assert world.contents() == world.before


def test_a_long_argument_makes_no_long_message(world: FuzzTarget) -> None:
    with pytest.raises(InvalidOption) as caught:
        world.table.drop_view("x" * 1_000_000)
    assert len(str(caught.value)) < 4_000
    assert world.table.uri in str(caught.value)


def test_annotations_are_the_checks() -> None:
    @checks_arguments
    def call(a: int, b: Literal["x", "y"] = "x", c: list[str] | None = None, d: float = 0.0, e: Any = None) -> object:
        return a, b, c, d, e

    assert call(1, "y", ["z"], 2, object())
    assert call(1, c=("z",), d=0.5)
    for wrong in ({"a": True}, {"a": 1.0}, {"b": 3}, {"c": "z"}, {"c": [1]}, {"d": float("nan")}, {"d": "1"}):
        with pytest.raises(InvalidArgument, match=f"call: {next(iter(wrong))} must be"):
            call(**{"a": 1, **wrong})
    with pytest.raises(InvalidOption, match="one of 'x', 'y', not 'z'") as caught:
        call(1, "z")  # type: ignore[arg-type]
    assert type(caught.value) is InvalidOption
    with pytest.raises(TypeError, match="unexpected keyword argument 'f'") as unknown:
        call(1, f=2)  # type: ignore[call-arg]
    assert not isinstance(unknown.value, IceDBError)


class _SharedOptions(TypedDict, total=False):
    size: int | None
    order: Literal["x", "y"] | None


@checks_arguments
def _call_with_options(a: int, *, last: bool = False, **options: Unpack[_SharedOptions]) -> object:
    return a, last, options


def test_shared_options_are_checked_parameters_of_the_signature() -> None:
    options = """size: 'int | None' = None, order: "Literal['x', 'y'] | None" = None"""
    assert str(inspect.signature(_call_with_options)) == f"(a: 'int', *, {options}, last: 'bool' = False) -> 'object'"
    assert _call_with_options(1, size=2) == (1, False, {"size": 2})
    assert _call_with_options(1, last=True, order=None) == (1, True, {"order": None})
    with pytest.raises(InvalidArgument, match="_call_with_options: size must be a whole number or None, not a str"):
        _call_with_options(1, size="2")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="order must be one of 'x', 'y' or None, not 'z'"):
        _call_with_options(1, order="z")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'sise'") as unknown:
        _call_with_options(1, sise=2)  # type: ignore[call-arg]
    assert not isinstance(unknown.value, IceDBError)


def test_help_lists_and_explains_each_option_of_a_spec() -> None:
    options = SpecOptions.__annotations__.keys()
    for verb in (Table.create, Table.alter):
        assert options <= inspect.signature(verb).parameters.keys()
    for name in inspect.signature(Table.create).parameters:
        assert f"\n            {name}: " in (Table.create.__doc__ or ""), name


# ------------------------------------------------------------------------------------------------ queries


def fetched(table: Table, sql: str, fetch: str) -> object:
    answer = getattr(table.query(sql), fetch)()
    return answer.read_all() if fetch == "to_arrow_reader" else answer


@pytest.mark.long
@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT nope FROM t", 'Candidate bindings: "'),
        ("SELECT * FROM nope", "The table is called t"),
        ("SELEC 1", "syntax error"),
        ("SELECT CAST(s AS INTEGER) FROM t", "Could not convert string"),
        ("SELECT error('mine') FROM t", "mine"),
        ("SELECT nope(a) FROM t", "nope does not exist"),
        ("SELECT sum(s) FROM t", "No function matches"),
        ("SELECT * FROM read_csv('/dev/null/nope.csv')", "nope.csv"),
    ],
)
def test_a_failing_query_raises_the_message_of_duckdb(world: FuzzTarget, sql: str, message: str) -> None:
    for fetch in ("fetchall", "to_arrow", "to_pandas", "to_polars", "fetchmany", "to_arrow_reader"):
        with pytest.raises(InvalidQuery, match=message.replace("(", r"\(")) as caught:
            fetched(world.table, sql, fetch)
        assert world.table.uri in str(caught.value)
        assert "LINE 1" not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.__suppress_context__


# ------------------------------------------------------------------------------------------------ the command


# fmt: off
HOSTILE_TEXTS = [
    "", " ", "x", "-1", "0", "1e9", "9" * 40, "nan", "true", "2026-11-21", "9999-12-31T23:59:59Z", "1h", "'",
    "ü\N{PARTY POPPER}", "../..", "/dev/null/x", "x" * 5_000, "a = 1", "p = 1", "p=1", "SELECT 1", "[]", "\ud800",
    "-999999999d", "99999999999999999d", "0x10", "s3://", "a=b", "=", "json", "table", "SELECT nope FROM t", "5",
]
# fmt: on
#: Verbs and a flag that work until they are stopped; flags that name a store in a network.
SERVES = ("proxy", "ingest", "exporter", "watch", "completion")
LEFT_OUT = ("--endpoint-url", "--profile", "--region", "--watch")


@dataclass(frozen=True)
class Verb:
    """A verb of the command, its number of arguments, and its flags with and without a value."""

    name: str
    arguments: int
    options: tuple[str, ...]
    flags: tuple[str, ...]


def verbs() -> list[Verb]:
    """Return every verb that ends by itself."""
    made = []
    for name, command in sorted(vars(get_command(app))["commands"].items()):
        options = [p for p in command.params if p.param_type_name == "option" and p.opts[0] not in LEFT_OUT]
        flags = tuple(p.opts[0] for p in options if getattr(p, "is_flag", False))
        valued = tuple(p.opts[0] for p in options if not getattr(p, "is_flag", False))
        if name not in SERVES:
            made.append(Verb(name, sum(p.param_type_name == "argument" for p in command.params), valued, flags))
    return made


def call_of(seed: int, world: FuzzTarget, some: Sequence[Verb]) -> list[str]:
    """Return the words of one call, mostly of the table, with hostile values."""
    chance = random.Random(seed)
    verb = some[seed % len(some)]
    words = [world.table.uri if chance.random() < 0.8 else chance.choice([world.fresh(), *HOSTILE_TEXTS])]
    words += [chance.choice(HOSTILE_TEXTS) for _ in range(verb.arguments - 1)]
    for option in chance.sample(verb.options, k=min(len(verb.options), chance.choice([0, 1, 2]))):
        words.append(f"{option}={chance.choice(HOSTILE_TEXTS)}")
    return [verb.name, *words, *chance.sample(verb.flags, k=min(len(verb.flags), chance.choice([0, 1])))]


def play_command(world: FuzzTarget, seeds: range) -> collections.Counter[int]:
    """Return the exit statuses of calls. Fail if a call raises, or prints a traceback or a secret."""
    escapes, statuses = [], collections.Counter[int]()
    some = verbs()
    for seed in seeds:
        words = call_of(seed, world, some)
        done = CliRunner().invoke(app, words, env={"AWS_SECRET_ACCESS_KEY": SECRET}, input="")
        statuses[int(done.exit_code)] += 1
        raised = done.exception if not isinstance(done.exception, SystemExit | None) else ""
        if done.exit_code not in range(6) or raised or "Traceback" in done.output or SECRET in done.output:
            examples = [word[:60] for word in words]
            escapes.append(f"seed {seed}: {examples}: {done.exit_code} {raised} {done.output[-500:]}")
        if world.contents() != world.before:
            world.renew()
    assert not escapes, f"{len(escapes)} of {len(seeds)}:\n" + "\n".join(escapes)
    return statuses


@pytest.mark.long
def test_the_command_prints_one_line_for_wrong_arguments(world: FuzzTarget) -> None:
    assert len(play_command(world, range(50_000, 50_030))) > 1


@pytest.mark.slow(seconds=60)
def test_the_command_survives_five_hundred_wrong_calls(world: FuzzTarget) -> None:
    assert len(play_command(world, range(500))) > 2
