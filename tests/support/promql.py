"""Alerts and panels of deploy/monitoring, and what their expressions ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import promql_parser as promql
import yaml

from rackgate_cli.locations import deploy_dir

FOLDER: Final = deploy_dir() / "monitoring"
# What Grafana puts in for its variables.
VARIABLES: Final = {"$__rate_interval": "5m", "$cluster_queue": ".*"}
# Labels that a scrape adds to every series.
OF_SCRAPE: Final = frozenset({"job", "pod", "instance"})
_SERIES = re.compile(r"_(bucket|sum|count)$")


@dataclass(frozen=True)
class Use:
    """One series that an expression selects.

    Attributes:
        metric: name of the series, as in the exposition.
        matchers: label, operator (=, !=, =~ or !~), value.
    """

    metric: str
    matchers: tuple[tuple[str, str, str], ...]

    @property
    def family(self) -> str:
        """The metric that the series belongs to."""
        return _SERIES.sub("", self.metric)


_OPERATORS: Final = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def alerts() -> list[dict[str, Any]]:
    """All alerts, in the order of the file."""
    document = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    return [rule for group in document["spec"]["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """All panels of the dashboard that show something."""
    document = json.loads((FOLDER / "dashboard.json").read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def variables() -> list[dict[str, Any]]:
    """What a user of the dashboard may choose."""
    document = json.loads((FOLDER / "dashboard.json").read_text())
    return list(document["templating"]["list"])


def expressions() -> list[tuple[str, str]]:
    """(alert or panel, expression), Grafana's variables filled in."""
    found = [(alert["alert"], alert["expr"]) for alert in alerts()]
    for panel in panels():
        found += [(panel["title"], filled_in(target["expr"])) for target in panel["targets"]]
    return found


def filled_in(expression: str) -> str:
    """An expression of the dashboard with values for Grafana's variables."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def uses(expression: str) -> list[Use]:
    """The series that an expression selects.

    Raises:
        ValueError: it is no PromQL.
    """
    found: list[Use] = []

    def visit(part: promql.Expr) -> None:
        if isinstance(part, promql.VectorSelector):
            matchers = tuple(
                (m.name, _OPERATORS[str(m.op).rpartition(".")[2]], m.value)
                for m in part.matchers.matchers
            )
            found.append(Use(part.name or "", matchers))

    promql.walk(promql.parse(expression), visit)
    return found


def grouped_by(expression: str) -> set[str]:
    """Every label that an expression groups by or matches on."""
    found: set[str] = set()

    def visit(part: promql.Expr) -> None:
        if isinstance(part, promql.AggregateExpr) and part.modifier:
            found.update(part.modifier.labels)
        if isinstance(part, promql.BinaryExpr) and part.modifier and part.modifier.matching:
            found.update(part.modifier.matching.labels)

    promql.walk(promql.parse(expression), visit)
    return found


def selects(use: Use, labels: Mapping[str, str]) -> bool:
    """Whether a series with these labels is selected; matchers on labels of the scrape pass."""
    return all(
        label in OF_SCRAPE or _fits(operator, value, labels.get(label, ""))
        for label, operator, value in use.matchers
    )


def _fits(operator: str, wanted: str, found: str) -> bool:
    if operator in ("=", "!="):
        return (found == wanted) == (operator == "=")
    return (re.fullmatch(wanted, found) is not None) == (operator == "=~")
