"""The data of gang Workloads: what is written, what it means, what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

Case = dict[str, Any]

DATA: Final = Path(__file__).parents[1] / "conformance" / "data" / "gang"
SAME: Final = "same as written"


@cache
def _load(name: str) -> Any:
    return yaml.safe_load((DATA / name).read_text())


def expand_cases() -> Mapping[str, Case]:
    """Specs with their canonical and collapsed forms, by id."""
    cases = {case["id"]: dict(case) for case in _load("expand.yaml")["cases"]}
    for case in cases.values():
        if case["collapsed"] == SAME:
            case["collapsed"] = case["written"]
    return cases


def invalid_cases(*by: str) -> Mapping[str, Case]:
    """Specs that must be refused by one of these, by id; all without an argument."""
    cases = {case["id"]: case for case in _load("invalid.yaml")["cases"]}
    return {name: case for name, case in cases.items() if not by or case["by"] in by}


def pairs() -> Mapping[str, Case]:
    """The nine pairs of a job and its Workload, by id."""
    found = (_load(f"pairs/{path.name}") for path in sorted((DATA / "pairs").iterdir()))
    return {pair["id"]: pair for pair in found}


def settings() -> Mapping[int, Case]:
    """The rows of the table of common workloads, by number."""
    return {row["row"]: row for row in _load("rev1-settings.yaml")["rows"]}


def lifecycles() -> Mapping[str, Case]:
    """Who makes, owns and deletes a Workload, by id."""
    return {case["id"]: case for case in _load("lifecycles.yaml")["cases"]}


def rules() -> Mapping[str, list[dict[str, str]]]:
    """The rules of the CustomResourceDefinition, by place."""
    found: Mapping[str, list[dict[str, str]]] = _load("rules.yaml")["rules"]
    return found


def rev1_specs() -> Iterator[tuple[str, Case]]:
    """Every spec of Rev1, with a name."""
    for name, pair in pairs().items():
        if pair["rev1"] is not None:
            yield name, pair["rev1"]["spec"]
    for number, row in settings().items():
        for field in ("rev1", "rev1Alternative"):
            if row.get(field) is not None:
                yield f"row-{number}-{field}", row[field]
        if "perJob" in row:
            yield f"row-{number}-perJob", row["perJob"]["rev1"]


def rev_n_specs() -> Iterator[tuple[str, Case]]:
    """Every spec of RevN, with a name."""
    for name, pair in pairs().items():
        yield name, pair["revN"]["spec"]
        yield f"{name}-canonical", pair["canonical"]
        if "correctedRevN" in pair:
            yield f"{name}-corrected", pair["correctedRevN"]["spec"]
    for number, row in settings().items():
        yield f"row-{number}", row["revN"]
    for name, case in expand_cases().items():
        for form in ("written", "canonical", "collapsed"):
            yield f"{name}-{form}", case[form]
