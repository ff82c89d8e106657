"""A Griffe extension that renders the `Example:` sections of docstrings as code; mkdocs.yml names this file."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Examples?:\n((?: {4}.*\n|\n)* {4}.*)", flags=re.MULTILINE)


def with_fences(docstring: str) -> str:
    """Put the body of each example into a fenced block, unless it has one."""

    def fence(match: re.Match[str]) -> str:
        body = match[1]
        if "```" in body:
            return match[0]
        language = "pycon" if body.lstrip().startswith(">>>") else "python"
        return f"Example:\n    ```{language}\n{body}\n    ```"

    return _EXAMPLE.sub(fence, docstring)


class DocstringExamples(griffe.Extension):
    """Put the examples of each object that Griffe reads into fenced blocks."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of `obj`."""
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)
