"""The cases of pools and workflows, and what counts as equal to their expected objects.

`names: free` leaves the names of subgroups open: there must be one renaming that makes parents,
constraints, `minMember` and the tasks of each leaf equal.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from rackgate_osmo.model.workflow import SUBGROUP_LABEL, Built

Case = dict[str, Any]
Entries = frozenset[tuple[Any, ...]]

DATA: Final = Path(__file__).parents[1] / "conformance" / "data" / "osmo"
SUBGROUP_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?")


@cache
def cases() -> Mapping[str, Case]:
    """All cases by id."""
    found = json.loads(gzip.decompress((DATA / "cases.json.gz").read_bytes()))["cases"]
    return {case["id"]: case for case in found}


@cache
def kai_accepts() -> Mapping[str, Mapping[str, str]]:
    """What real KAI does with hand-written objects, by the line's id."""
    sections = yaml.safe_load((DATA / "kai-accepts.yaml").read_text())
    return {line["id"]: line for lines in sections.values() for line in lines}


def submission(case: Case) -> dict[str, Any]:
    """Workflow and resources of a case, as one document."""
    return {"workflow": case["workflow"], "resources": case["resources"]}


def leaf_tasks(group: str, built: Built) -> dict[str | None, frozenset[str]]:
    """Tasks by the subgroup that their pods' label names."""
    found: dict[str | None, set[str]] = {}
    for (task_group, task), marks in built.pods.items():
        if task_group == group:
            found.setdefault(marks.labels.get(SUBGROUP_LABEL), set()).add(task)
    return {name: frozenset(tasks) for name, tasks in found.items()}


def expected_tasks(pod_group: str, case: Case) -> dict[str | None, frozenset[str]]:
    """The same of a case's expected pods."""
    return {
        entry["labels"].get(SUBGROUP_LABEL): frozenset(entry["tasks"])
        for entry in case["expected"]["pods"]
        if entry["podGroup"] == pod_group
    }


def structure(
    subgroups: Iterable[Mapping[str, Any]],
    tasks: Mapping[str | None, frozenset[str]],
    *,
    names: bool,
) -> Counter[tuple[Any, ...]]:
    """Subgroups without their names: each as all it says, from its oldest ancestor down to it.

    Equal counts mean that a renaming exists: a node is its own facts, its tasks below and its
    ancestors'. With `names` the names stay among the facts.
    """
    entries = {entry["name"]: entry for entry in subgroups}
    below: dict[str, set[str]] = {name: set() for name in entries}
    for name, members in tasks.items():
        while name is not None and name in entries:
            below[name] |= members
            name = entries[name].get("parent")  # noqa: PLW2901 - walking up from the leaf

    def chain(name: str | None) -> tuple[Any, ...]:
        if name is None:
            return ()
        entry = entries[name]
        rest = {key: value for key, value in entry.items() if key not in ("name", "parent")}
        facts = (json.dumps(rest, sort_keys=True), frozenset(below[name]))
        return (*chain(entry.get("parent")), (name, *facts) if names else facts)

    return Counter(map(chain, entries))
