"""Whatever a quota scenario file is turned into: an answer, or errors that name places in it."""

from __future__ import annotations

import copy
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from rackgate_assigner.quota_scenario.scenario import QuotaScenarioError, answers
from tests.property.test_bad_scenarios import PATH, spoil

DATA: Final = Path(__file__).parents[1] / "conformance" / "data" / "quota"
SMALL: Final = 6000  # bytes of JSON


@cache
def seeds() -> list[dict[str, Any]]:
    """Some of the small questions of each kind of the data."""
    kinds: dict[tuple[str, ...], dict[str, Any]] = {}
    for name in ("table-cases", "generated-public", "generated-topology"):
        file = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
        for one in file["scenarios"]:
            if one["clusterQueues"] and len(json.dumps(one)) < SMALL:
                first = one["clusterQueues"][0]
                kind = {*one, *first, *first["preemption"], *one["tags"]}
                kinds.setdefault(tuple(sorted(kind)), one)
    return list(kinds.values())


@given(st.data())
def test_a_spoiled_file_is_answered_or_rejected_with_paths(data: st.DataObject) -> None:
    scenario = copy.deepcopy(data.draw(st.sampled_from(seeds())))
    for _ in range(data.draw(st.integers(1, 3))):
        spoil(scenario, data)
    try:
        body = json.dumps({"format": "quota-scenario/1", "scenarios": [scenario]}).encode()
    except ValueError:
        return
    try:
        found = list(answers(body))
    except QuotaScenarioError as error:
        lines = str(error).split("\n")
        assert all(PATH.match(line) for line in lines[:20]), lines
        assert all(len(line) < 2000 for line in lines)
    else:
        assert [answer["id"] for answer in found] == [scenario["id"]]
        json.dumps(found)
