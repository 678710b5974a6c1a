"""`rackgate gang`: reading, refusing, expanding, collapsing, explaining."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.gang.forms.collapse import collapse
from rackgate.gang.shape import Shape, shape_of
from rackgate.gang.validation import errors_of
from rackgate_cli.__main__ import main
from tests.support.gang_cases import expand_cases, pairs

GATE = ("--feature-gates", "WorkloadRevN=true")
HEAD = {"apiVersion": "scheduling.rackgate.dev/v1alpha1", "kind": "Workload"}
REV1: dict[str, Any] = {"gangGroups": [{"name": "gg", "minCount": 8}]}


def write(folder: Path, *documents: Any) -> str:
    path = folder / "workload.yaml"
    path.write_text("\n---\n".join(map(json.dumps, documents)))
    return str(path)


def workload(spec: Any, name: str = "w") -> dict[str, Any]:
    return {**HEAD, "metadata": {"name": name}, "spec": spec}


def run(*words: str) -> int:
    return main(["gang", *words])


@pytest.mark.requirement("GNG-41")
def test_expand_and_collapse_print_whole_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = expand_cases()["single-gang-two-rank-groups"]
    file = write(tmp_path, workload(case["written"]))
    assert run("expand", "-f", file, *GATE) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == workload(case["canonical"])
    assert run("collapse", "-f", write(tmp_path, yaml.safe_load(text)), *GATE) == 0
    assert yaml.safe_load(capsys.readouterr().out) == workload(case["collapsed"])


def test_other_objects_are_ignored_and_lists_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kueues = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [workload(REV1, "b")]}
    file = write(tmp_path, kueues, "text", workload(REV1, "a"), listed)
    assert run("expand", "-f", file) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [one["metadata"]["name"] for one in found] == ["a", "b"]


def test_a_file_without_a_workload_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("explain", "-f", write(tmp_path, {"kind": "Job"})) == 2
    wanted = "contains no Workload of scheduling.rackgate.dev/v1alpha1"
    assert wanted in capsys.readouterr().err


@pytest.mark.requirement("GNG-09")
def test_all_errors_of_all_objects_are_printed_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {"replicaMode": "None", "gangGroups": [{"name": "gg", "minCounts": 3}]}
    file = write(tmp_path, workload(REV1), workload(bad, "x\x1b"), workload({"minCount": 1}, "y"))
    assert run("expand", "-f", file) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.splitlines() == [
        f'rackgate: "{file}" is invalid:',
        "  x\\x1b: spec.replicaMode: input should be 'Unreplicated', 'ReplicatedPods' or "
        "'ReplicatedGangs', found \"None\"",
        "  x\\x1b: spec.gangGroups[0].minCounts: is no field; did you mean minCount?",
        "  y: spec.minCount: is a field of RevN; leave it out, or set feature gate WorkloadRevN",
    ]


def test_an_unquoted_off_is_read_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, workload({"gangGroups": [{"name": "gg", "gangMode": False}]}))
    assert run("collapse", "-f", file, *GATE) == 0
    found = capsys.readouterr()
    assert yaml.safe_load(found.out) == workload({})
    assert "put Off in quotes" in found.err


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        ("WorkloadRevM=true", 'unknown gate "WorkloadRevM": use WorkloadRevN'),
        ("WorkloadRevN=yes", '"WorkloadRevN=yes" is not NAME=true or NAME=false'),
    ],
)
def test_another_gate_or_value_is_wrong_usage(
    gates: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run("expand", "-f", write(tmp_path, workload(REV1)), "--feature-gates", gates)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def explained(spec: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert run("explain", "-f", write(tmp_path, workload(spec)), *GATE) == 0
    return capsys.readouterr().out.splitlines()


def test_explain_says_what_is_asked_for_and_that_nothing_acts_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explained(pairs()["leaderworkerset"]["correctedRevN"]["spec"], tmp_path, capsys) == [
        "Workload w, for LeaderWorkerSet vllm",
        "",
        "shape: Replicated Gangs",
        "Each replica is one gang. Counts are those of one replica.",
        "The pod label leaderworkerset.sigs.k8s.io/group-key tells replicas apart.",
        "",
        "gang group gg is a gang of at least 2 pods: they start together, or none does.",
        "  If a part of them waits longer than 60 s, all give way and try again.",
        "  2 pods",
        "  ranked group rg: its pods have no ranks.",
        "    equal pods leader: 1 pod",
        "      pods: label leaderworkerset.sigs.k8s.io/worker-index is 0",
        "    equal pods worker: 1 pod",
        "      pods: those that no other group selects",
        "",
        "defaults that apply:",
        "  spec.gangGroups[0].minCount: 2",
        "  spec.gangGroups[0].scheduleTimeoutSeconds: 60",
    ]


def test_explain_names_places_ranks_shapes_labels_and_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['i']"}}}
    template = {"resources": {"requests": {"cpu": "500m", "memory": "2Gi"}}}
    spec = {
        "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "j"},
        "minCount": 2,
        "maxCount": 9,
        "topologySpread": {},
        "topologyRequest": {"required": "block"},
        "gangGroups": [
            {
                "name": "gg",
                "minCount": 2,
                "reschedulingPolicy": "TerminateAll",
                "topologyRequest": {"preferred": "rack"},
                "rankedGroups": [
                    {"name": "a", "podRank": rank, "topologyRequest": {"unconstrained": True}},
                    {
                        "name": "b",
                        "podRank": rank,
                        "rankMode": "Off",
                        "eqGroups": [
                            {
                                "name": "e",
                                "maxCount": 5,
                                "template": template,
                                "maxTemplate": template,
                                "topologyRequest": {"resourceClaims": [{"resourceClaim": "c"}]},
                            }
                        ],
                    },
                ],
            }
        ],
    }
    found = explained(spec, tmp_path, capsys)
    wanted = [
        "the whole workload: 2 to 9 pods",
        "the whole workload: all pods must be in one domain of block",
        "the whole workload: topologySpread, whose fields are not decided",
        "  If a member is lost, all members start again (TerminateAll).",
        "  all pods should be in one domain of rack",
        "  ranked group a: the rank of a pod is in metadata.labels['i'].",
        "    pods go to any domains with capacity",
        "    equal pods template: any number of pods",
        "  ranked group b: the rank of a pod is in metadata.labels['i'], which the placement does "
        "not use (rankMode Off).",
        "    equal pods e: 0 to 5 pods",
        "      pods share the claims c",
        "      each pod: cpu 500m, memory 2Gi",
        "      each at most: cpu 500m, memory 2Gi",
        "  jobset.sigs.k8s.io/replicatedjob-name",
        "  spec.gangGroups[0].rankedGroups: nothing tells the pods of a, b apart, so what these "
        "groups ask for is not applied: give each group a selector with the same key",
    ]
    assert [line for line in wanted if line not in found] == []
    assert "gang group gg is no gang: each pod starts on its own." in explained(
        {"replicaMode": "ReplicatedPods"}, tmp_path, capsys
    )


PAGE = (Path(__file__).parents[3] / "docs" / "concepts" / "gangs.md").read_text()


def test_the_object_that_users_are_shown_is_explained_as_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, text = re.findall(r"```(?:yaml)?\n(apiVersion.*?|Workload.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "workload.yaml"
    file.write_text(manifest)
    assert run("explain", "-f", str(file)) == 0
    assert capsys.readouterr().out == text


def test_the_shapes_that_users_are_shown_are_those_of_their_short_forms() -> None:
    rows = re.findall(r"^\| ([A-Z][A-Za-z ]+) \| [^|]+ \| `(\{.*\})` \|$", PAGE, re.MULTILINE)
    rank = "{valueFrom: {fieldRef: {fieldPath: \"metadata.labels['i']\"}}}"
    assert {name for name, _ in rows} == set(Shape)
    for name, short in rows:
        spec = yaml.safe_load(short.replace("...", rank))
        assert errors_of(spec, rev_n=True) == []
        assert (shape_of(spec), collapse(spec)) == (name, spec)
