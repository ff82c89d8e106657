"""Generates docs/reference/command.md from the help of the command: `python -m docs_site.command_page`.

Run it after a change of a verb or an option. A test compares the page with the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
import typer.main

from docs_site.beyond import ROOT
from icedb.cli import app

__all__ = ["PAGE", "command_page"]

PAGE = ROOT / "docs" / "reference" / "command.md"
_INTRODUCTION = """\
# Command line reference

Generated from `icedb --help` and `icedb VERB --help`. [Command line](../command.md) describes credentials, output and
exit statuses.
"""


def command_page() -> str:
    """Return the text of the page: the verbs in the panels and the order of `icedb --help`."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group, info_name="icedb")
    panels: dict[str, list[str]] = {}
    for name in group.list_commands(context):
        verb = group.get_command(context, name)
        if not verb.hidden:
            section = "\n".join(_verb(verb, typer.Context(verb, info_name=name, parent=context)))
            panels.setdefault(verb.rich_help_panel or "Others", []).append(section)
    pieces = [_INTRODUCTION, *_parameters(group, context)]
    for panel, sections in panels.items():
        pieces += [f"## {panel}\n", *sections]
    return "\n".join(pieces)


def _verb(verb: Any, context: typer.Context) -> Iterator[str]:
    yield f"### icedb {context.info_name}\n"
    usage = " ".join(verb.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    yield f"{verb.help}\n"
    yield f"Example: `{verb.epilog.removeprefix('Example: ')}`\n"
    yield from _parameters(verb, context)


def _parameters(command: Any, context: typer.Context) -> Iterator[str]:
    """Yield a table of the arguments and one of the options."""
    parameters = [p for p in command.get_params(context) if p.name != "help"]
    for kind in ("argument", "option"):
        records = [p.get_help_record(context) for p in parameters if p.param_type_name == kind]
        rows = [f"| {_code(names)} | {_cell(text)} |" for names, text in filter(None, records)]
        if rows:
            yield "\n".join([f"| {kind} | meaning |", "|---|---|", *rows, ""])


def _code(names: str) -> str:
    return f"`{names}`".replace("|", "\\|")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(command_page())
