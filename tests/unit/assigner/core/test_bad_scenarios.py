"""Placement questions that have no answer are refused by path, value and what would help."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from rackgate_assigner.scenario.format import MAX_NODES
from rackgate_assigner.scenario.scenario import ScenarioError, answers

HOST = "kubernetes.io/hostname"
GOOD: dict[str, Any] = {
    "id": "one",
    "levels": ["block", HOST],
    "flavor": {"topology": "default", "nodeLabels": {"pool": "tas"}},
    "nodes": [
        {
            "name": f"node-{i}",
            "labels": {"block": "b1", HOST: f"x{i}", "pool": "tas"},
            "allocatable": {"cpu": "1500m", "pods": "3"},
        }
        for i in range(2)
    ],
    "pods": [{"name": "p", "node": "node-0", "phase": "Running", "requests": {"cpu": "1"}}],
    "usage": [{"values": ["x0"], "count": 1, "requests": {"cpu": "1m"}}],
    "podSets": [{"name": "main", "count": 1, "requests": {"cpu": "0.5"}}],
}
ASSIGNED = {"levels": [HOST], "domains": [{"values": ["x0"], "count": 1}]}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good scenario with one field set; steps are keys and indexes."""
    found = copy.deepcopy(GOOD)
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("|"))
    place: Any = found
    for step in steps:
        place = place[step]
    if isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    return found


def text(*scenarios: dict[str, Any]) -> bytes:
    return json.dumps({"format": "tas-scenario/1", "scenarios": scenarios}).encode()


def refusal(body: bytes) -> str:
    with pytest.raises(ScenarioError) as caught:
        list(answers(body))
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def test_the_good_one_is_answered() -> None:
    (found,) = answers(text(GOOD))
    assert found["expected"]["main"]["assignment"]["domains"] == [{"values": ["x1"], "count": 1}]


LONG = "x" * 10_000_000
WHOLE = "must be a whole number from 0 to 2147483647"
BROKEN: list[tuple[str, Any, str]] = [
    ("id", LONG, f'id: "{"x" * 60}...": must have 0 to 253 characters, it has 10000000'),
    ("id", 5, "id: 5: must be a string"),
    ("levels", [], "levels: 0 levels: must be 1 to 16"),
    ("levels", "rack", 'levels: "rack": must be a list'),
    ("levels", [str(i) for i in range(17)], "levels: 17 levels: must be 1 to 16"),
    ("levels", ["a", "b", "a"], 'levels[2]: "a": is in scenarios[0].levels[0] already'),
    ("levels", ["", "a"], 'levels[0]: "": must have 1 to 317 characters, it has 0'),
    ("levels", [HOST, "a"], f'levels[0]: "{HOST}": can only be the last level'),
    ("levels", [LONG], 'levels[0]: "xxx'),
    ("flavor", None, "flavor: nothing: must be an object"),
    ("flavor", {}, 'flavor: missing required field "topology"'),
    ("flavor|topology", LONG, 'flavor.topology: "xxx'),
    ("flavor|nodeLabels", {"a": LONG}, 'flavor.nodeLabels["a"]: "xxx'),
    ("flavor|nodeLabels", {LONG: "a"}, 'flavor.nodeLabels: "xxx'),
    (
        "flavor|tolerations",
        [{"operator": "Is"}],
        'flavor.tolerations[0].operator: "Is": unknown operator (known: Equal, Exists, Gt, Lt)',
    ),
    ("gates", {"Nope": True}, 'gates: "Nope": unknown feature gate (known: Elastic'),
    ("gates", {"TASProfileMixed": 1}, 'gates["TASProfileMixed"]: 1: must be true or false'),
    ("nodes", {}, "nodes: an object: must be a list"),
    ("nodes|0|name", 1, "nodes[0].name: 1: must be a string"),
    ("nodes|0|name", "", 'nodes[0].name: "": must have 1 to 253 characters, it has 0'),
    ("nodes|0|name", LONG, 'nodes[0].name: "xxx'),
    (
        "nodes|1|name",
        "node-0",
        'nodes[1].name: "node-0": is in scenarios[0].nodes[0].name already',
    ),
    ("nodes|0|labels", {"a": 1}, 'nodes[0].labels["a"]: 1: must be a string'),
    ("nodes|0|labels", {"a": "x" * 64}, 'nodes[0].labels["a"]: "xxx'),
    (
        "nodes|0|allocatable",
        {"cpu": "1x"},
        'nodes[0].allocatable["cpu"]: "1x": must be a quantity such as "500m", "4" or',
    ),
    ("nodes|0|allocatable", {"cpu": LONG}, 'nodes[0].allocatable["cpu"]: "xxx'),
    ("nodes|0|allocatable", {"cpu": "NaN"}, 'nodes[0].allocatable["cpu"]: "NaN": must be a'),
    ("nodes|0|allocatable", {"cpu": -2}, 'nodes[0].allocatable["cpu"]: -2: must not be negative'),
    ("nodes|0|allocatable", {"cpu": True}, 'nodes[0].allocatable["cpu"]: true: must be'),
    (
        "nodes|0|taints",
        [{"key": "a", "effect": "NoSchedul"}],
        'nodes[0].taints[0].effect: "NoSchedul": unknown effect (known: NoSchedule, PreferNo',
    ),
    ("nodes|0|ready", "yes", 'nodes[0].ready: "yes": must be true or false'),
    ("pods|0|phase", "Runing", 'pods[0].phase: "Runing": unknown phase (known: Pending, Running'),
    ("pods|0|requests", {"cpu": "-1"}, 'pods[0].requests["cpu"]: "-1": must not be negative'),
    ("usage|0|values", [], "usage[0].values: 0 values: must be 1 to 2, of the lowest levels"),
    ("usage|0|values", ["a", "b", "c"], "usage[0].values: 3 values: must be 1 to 2"),
    ("usage|0|count", -1, f"usage[0].count: -1: {WHOLE}"),
    ("podSets", [5], "podSets[0]: 5: must be an object"),
    ("podSets|0|count", -2, f"podSets[0].count: -2: {WHOLE}"),
    ("podSets|0|count", 2**31, f"podSets[0].count: 2147483648: {WHOLE}"),
    ("podSets|0|count", 10**30, f"podSets[0].count: a number of 100 bits: {WHOLE}"),
    ("podSets|0|count", 1.5, "podSets[0].count: 1.5: must be a whole number"),
    ("podSets|0|count", "2", 'podSets[0].count: "2": must be a whole number'),
    (
        "podSets|1",
        {"name": "main", "count": 1},
        'podSets[1].name: "main": is in scenarios[0].podSets[0].name already',
    ),
    ("podSets|0|requests", {"cpu": "-1"}, 'podSets[0].requests["cpu"]: "-1": must not be neg'),
    (
        "podSets|0|topologyRequest",
        {"required": "block", "unconstrained": True},
        "podSets[0].topologyRequest.unconstrained: true: must not be set together with required",
    ),
    (
        "podSets|0|topologyRequest",
        {"slices": [{"topology": "block", "size": -1}]},
        f"podSets[0].topologyRequest.slices[0].size: -1: {WHOLE}",
    ),
    (
        "podSets|0|topologyRequest",
        {"slices": [{"topology": "block", "size": 4}, {"topology": HOST, "size": 0}]},
        "podSets[0].topologyRequest.slices[1].size: 0: must be a whole number from 1 to",
    ),
    ("podSets|0|nodeAffinity", [], "podSets[0].nodeAffinity: a list of 0: must be an object or"),
    (
        "podSets|0|nodeAffinity",
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": 5}},
        "podSets[0].nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelector"
        "Terms: expected `array | null`, got `int`",
    ),
    ("podSets|0|nodeAffinity", {"a": [0] * 2000}, "podSets[0].nodeAffinity: 2001 entries: must"),
    (
        "podSets|0|previousAssignment",
        {"levels": ["rack"], "domains": []},
        f'podSets[0].previousAssignment.levels: "rack": must be those of the topology (levels: '
        f"block, {HOST}), or the host's alone",
    ),
    (
        "podSets|0|previousAssignment",
        {**ASSIGNED, "domains": [{"values": ["x0", "x1"], "count": 1}]},
        "podSets[0].previousAssignment.domains[0].values: 2 values: must be 1, one for each",
    ),
    (
        "podSets|0|previousAssignment",
        {**ASSIGNED, "domains": [{"values": ["x0"], "count": 0}]},
        "podSets[0].previousAssignment.domains[0].count: 0: must be a whole number from 1 to",
    ),
    (
        "podSets|0|previousAssignment",
        {**ASSIGNED, "domains": [{"values": ["x0"], "count": 1}] * 2},
        'podSets[0].previousAssignment.domains[1].values: "x0": is in scenarios[0]',
    ),
    (
        "replacement",
        {"unhealthyNodes": ["x0"], "assignments": {"other": ASSIGNED}},
        'replacement.assignments: "other": unknown PodSet (known: main)',
    ),
    (
        "replacement",
        {"unhealthyNodes": ["x0", "x0"], "assignments": {"main": ASSIGNED}},
        'replacement.unhealthyNodes[1]: "x0": is in scenarios[0].replacement.unhealthyNodes[0]',
    ),
    (
        "replacement",
        {"unhealthyNodes": ["x0"], "assignments": {"main": {**ASSIGNED, "levels": []}}},
        'replacement.assignments["main"].levels: "": must be those of the topology',
    ),
    (
        "replacement",
        {"assignments": {"a": ASSIGNED, "b.c/d": {**ASSIGNED, "domains": 5}}},
        'replacement.assignments["b.c/d"].domains: 5: must be a list',
    ),
]


@pytest.mark.parametrize(("path", "value", "says"), BROKEN)
def test_what_has_no_answer_is_rejected(path: str, value: Any, says: str) -> None:
    assert refusal(text(changed(path, value))).startswith(f"scenarios[0].{says}")


def test_the_path_counts_scenarios() -> None:
    found = refusal(text(GOOD, GOOD, changed("podSets|0|count", -2)))
    assert found.startswith("scenarios[2].podSets[0].count: -2: ")


def test_groups_have_two_members() -> None:
    podsets = [{"name": str(i), "count": 1, "group": "g"} for i in range(3)]
    found = refusal(text({**GOOD, "podSets": podsets}))
    assert found == 'scenarios[0].podSets[2].group: "g": has two members already'


def test_nodes_are_no_more_than_sums_stay_exact_for() -> None:
    nodes = [{"name": str(i)} for i in range(MAX_NODES + 1)]
    found = refusal(text({**GOOD, "nodes": nodes}))
    assert found == "scenarios[0].nodes: 131073 entries: must be no more than 131072"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_know_are_found_by_their_path(number: str) -> None:
    body = text(GOOD).replace(b'"count": 1', f'"count": {number}'.encode(), 1)
    assert refusal(body) == f"scenarios[0].usage[0].count: {number}: JSON has no such number"


@pytest.mark.parametrize("number", ["1e999", "9" * 5000])
def test_numbers_out_of_all_bounds_are_found_by_their_path(number: str) -> None:
    body = text(GOOD).replace(b'"count": 1', f'"count": {number}'.encode(), 1)
    assert refusal(body).startswith(f"scenarios[0].usage[0].count: {number[:100]}: ")
    assert refusal(body).endswith("out of range")


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the file is empty: a tas-scenario/1 document is required"),
        (b" \n", "the file is empty: a tas-scenario/1 document is required"),
        (b"\xff\xfe{\0", "the file is not UTF-8: invalid start byte (byte 0)"),
        (b'{"format": "\xc3"}', "the file is not UTF-8: invalid continuation byte (byte 12)"),
        (b"\xef\xbb\xbf{}", "the file begins with a byte order mark: save it without"),
        (b"{", "the file is not JSON: Input data was truncated"),
        (b"format: tas-scenario/1", "the file is not JSON: invalid character"),
        (b"[]", "the document: a list of 0: must be an object"),
        (b"null", "the document: nothing: must be an object"),
        (b"{}", 'format: nothing: must be "tas-scenario/1"'),
        (b'{"format": {}}', 'format: an object: must be "tas-scenario/1"'),
        (
            b'{"format": "tas-scenario/2", "scenarios": 5}',
            'format: "tas-scenario/2": must be "tas-scenario/1"',
        ),
        (b'{"format": "tas-scenario/1"}', 'the document: missing required field "scenarios"'),
        (b'{"format": "tas-scenario/1", "scenarios": {}}', "scenarios: an object: must be a list"),
        (DEEP, "the document: must be an object"),
        (b'{"format": ' + DEEP + b"}", "the file is nested too deeply to be read"),
        (b'{"unknown": ' + DEEP + b"}", "the file is nested too deeply to be read"),
        (text(GOOD) + b"}", "the file is not JSON: trailing characters (byte"),
        (b'{"a": "\x1b[31m\\u001b[31m', "the file is not JSON: "),
    ],
)
def test_what_is_no_scenario_file_is_rejected(body: bytes, says: str) -> None:
    assert refusal(body).startswith(says)


def test_nothing_found_reaches_a_terminal_unescaped() -> None:
    found = refusal(text(changed("pods|0|phase", "\x1b[31m\nred")))
    assert '"\\u001b[31m\\nred"' in found
    assert found.isprintable()


def test_a_level_no_one_has_is_a_question_with_an_answer() -> None:
    (found,) = answers(text(changed("podSets|0|topologyRequest", {"required": "zone"})))
    assert found["expected"] == {"main": {"failure": "no requested topology level: zone"}}
