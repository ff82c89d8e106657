"""A Griffe extension that lists shared options in the reference; mkdocs.yml names this file.

Functions have them as `**options: Unpack[SpecOptions]`. The reference shows each one as a parameter.
"""

from __future__ import annotations

from typing import Any

import griffe


class SharedOptions(griffe.Extension):
    """Replaces `**options` by the options, as `icedb.util.arguments` does for `help`."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Change the parameters of `func` and of its overloads."""
        _expand(func, default="None")
        for overload in func.overloads or ():
            _expand(overload, default="...")


def _expand(function: griffe.Function, *, default: str) -> None:
    unpack = next((p.annotation for p in function.parameters if p.kind is griffe.ParameterKind.var_keyword), None)
    if not isinstance(unpack, griffe.ExprSubscript) or unpack.canonical_path != "typing.Unpack":
        return
    if isinstance(unpack.slice, griffe.Expr):
        keyword = griffe.ParameterKind.keyword_only
        options = function.modules_collection[unpack.slice.canonical_path].attributes
        shared = (
            griffe.Parameter(n, annotation=o.annotation, kind=keyword, default=default) for n, o in options.items()
        )
        *own, _ = function.parameters
        first = [p for p in own if p.kind is not keyword]
        function.parameters = griffe.Parameters(*first, *shared, *(p for p in own if p.kind is keyword))
