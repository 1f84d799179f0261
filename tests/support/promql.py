"""Expressions of Prometheus: what they select, and what the simple ones are worth. Parsed by promql-parser."""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import promql_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

MATCHES: dict[str, Callable[[str, str], bool]] = {
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "Re": lambda value, pattern: re.fullmatch(pattern, value) is not None,
    "NotRe": lambda value, pattern: re.fullmatch(pattern, value) is None,
}
COMPARE: dict[str, Callable[[float, float], bool]] = {"==": operator.eq, ">": operator.gt, "<": operator.lt}
AGGREGATE: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "group": lambda values: 1.0}


@dataclass(frozen=True, slots=True)
class Selected:
    """What one selector of an expression asks for."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a series of that name with these labels is selected."""
        return all(MATCHES[how](labels.get(label, ""), value) for label, how, value in self.matchers)


def parse(text: str) -> promql_parser.Expr:
    """Parse an expression, also one of a dashboard: Grafana's variables stand for what they may become.

    Raises:
        ValueError: it is no PromQL.
    """
    for variable, value in {"$__rate_interval": "5m", "$__range": "3h", "$lock": ".*"}.items():
        text = text.replace(variable, value)
    return promql_parser.parse(text)


def selected_by(expression: promql_parser.Expr) -> list[Selected]:
    """Every selector in an expression."""
    found: list[Selected] = []

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, promql_parser.MatrixSelector):
            part = part.vector_selector
        if isinstance(part, promql_parser.VectorSelector):
            found.append(_selected(part))

    promql_parser.walk(expression, visit)
    return list(dict.fromkeys(found))


def grouped_by(expression: promql_parser.Expr) -> set[str]:
    """Every label that an expression aggregates by."""
    found: set[str] = set()

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            found.update(part.modifier.labels)

    promql_parser.walk(expression, visit)
    return found


def evaluate(expression: promql_parser.Expr, now: Mapping[tuple[str, Labels], float]) -> Vector:
    """Work out an expression of selectors, ``sum/max/group by`` and comparisons with a number, over these series."""
    if isinstance(expression, promql_parser.VectorSelector):
        selected = _selected(expression)
        return {
            labels: value
            for (name, labels), value in now.items()
            if name == selected.name and selected.takes(dict(labels))
        }
    if isinstance(expression, promql_parser.AggregateExpr):
        assert expression.modifier is not None
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in evaluate(expression.expr, now).items():
            groups[frozenset(pair for pair in labels if pair[0] in expression.modifier.labels)].append(value)
        return {labels: AGGREGATE[str(expression.op)](values) for labels, values in groups.items()}
    if isinstance(expression, promql_parser.BinaryExpr):
        assert isinstance(expression.rhs, promql_parser.NumberLiteral)
        compare, bound = COMPARE[str(expression.op)], expression.rhs.val
        return {labels: value for labels, value in evaluate(expression.lhs, now).items() if compare(value, bound)}
    raise NotImplementedError(type(expression).__name__)


def _selected(selector: Any) -> Selected:
    matchers = tuple((m.name, str(m.op).rpartition(".")[2], m.value) for m in selector.matchers.matchers)
    assert selector.name is not None
    return Selected(selector.name, matchers)
