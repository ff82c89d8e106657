"""A check of PromQL expressions: each metric is exposed, and has the labels by which it is selected and aggregated.

Two vectors that are combined must have the same labels, because otherwise no series would match.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import promql_parser as pql

#: Labels that Prometheus adds to each series.
ADDED = frozenset({"job", "instance"})


class PromqlError(Exception):
    """An expression that cannot be parsed, or that finds nothing."""


def result_labels(expression: str, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the labels of an expression's result. `series`: the labels of each series. Raises PromqlError."""
    try:
        parsed = pql.parse(expression)
    except ValueError as error:
        raise PromqlError(f"{expression}: {error}") from None
    return _labels(parsed, series) or frozenset()


def _labels(node: Any, series: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    """Return the labels of a vector, or None for a scalar."""
    match node:
        case pql.NumberLiteral() | pql.StringLiteral():
            return None
        case pql.ParenExpr() | pql.UnaryExpr() | pql.SubqueryExpr():
            return _labels(node.expr, series)
        case pql.MatrixSelector():
            return _labels(node.vector_selector, series)
        case pql.VectorSelector():
            return _selected(node, series)
        case pql.AggregateExpr():
            return _aggregated(node, series)
        case pql.Call():
            return _called(node, series)
        case pql.BinaryExpr():
            return _combined(node, series)
    raise PromqlError(f"unknown expression: {node}")


def _selected(node: Any, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    if node.name not in series:
        raise PromqlError(f"no service exposes {node.name}")
    labels = series[node.name] | ADDED
    unknown = {matcher.name for matcher in node.matchers.matchers} - labels
    if unknown:
        raise PromqlError(f"{node.name} has no label {sorted(unknown)}")
    return labels


def _aggregated(node: Any, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    inner, modifier = _labels(node.expr, series) or frozenset(), node.modifier
    if modifier is None:
        return frozenset()
    named = frozenset(modifier.labels)
    if named - inner:
        raise PromqlError(f"there is no label {sorted(named - inner)} to aggregate by")
    return named if modifier.type == pql.AggModifierType.By else inner - named


def _called(node: Any, series: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    vectors = [labels for argument in node.args if (labels := _labels(argument, series)) is not None]
    if node.func.name == "vector":
        return frozenset()
    if not vectors:
        return None
    if node.func.name == "histogram_quantile" and "le" not in vectors[0]:
        raise PromqlError("histogram_quantile needs the label le")
    return vectors[0] - {"le"} if node.func.name == "histogram_quantile" else vectors[0]


def _combined(node: Any, series: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    left, right = _labels(node.lhs, series), _labels(node.rhs, series)
    if left is None or right is None:
        return right if left is None else left
    if left != right:
        raise PromqlError(f"the sides have different labels: {sorted(left)} and {sorted(right)}")
    return left
