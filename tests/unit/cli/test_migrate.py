"""`rackgate migrate`: how objects and settings of Kueue work, and the steps of the switch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import names
from rackgate_cli.__main__ import main
from rackgate_cli.kueue_config.table import SETTINGS, SUBTREE, Support
from rackgate_cli.migrate import reading
from rackgate_cli.migrate.compatibility import FIELDS, KEYS, Outcome, Row
from rackgate_cli.migrate.judging import (
    MAX_FINDINGS,
    judge,
    judge_configuration,
    served_versions,
    shared_nodes,
    with_shared_nodes,
)
from rackgate_cli.migrate.plan import Plan, plan_of
from rackgate_cli.migrate.report import Item, Result, report_of, schema
from rackgate_cli.migrate.view import plan_text
from rackgate_cli.preflight.findings import ClusterSnapshot
from rackgate_cli.preflight.findings import findings as preflight_findings
from tests.support.manifests import cluster_queue, flavor, manifest, topology, workload
from tests.support.objects import job
from tests.support.runbook import commands

Object = dict[str, Any]

ROWS = [
    (kind, row)
    for kind, rows in FIELDS.items()
    for row in rows
    if row.name.startswith("spec.") and kind in served_versions()
]


def judged(obj: Object, *, stored: bool = False) -> Item:
    found = judge(obj, stored=stored)
    assert found is not None
    return found


def nested(path: str) -> Object:
    """An object in which exactly this path is set."""
    value: Any = {"set": "by a test"} if path.endswith(SUBTREE) else "set"
    for key in reversed(path.removesuffix(SUBTREE).split(".")):
        value = [value] if key.endswith("[]") else value
        value = {key.removesuffix("[]"): value}
    return dict(value)


def said(row: Row, path: str, item: Item) -> list[str]:
    below = path.removesuffix(SUBTREE)
    return [one.outcome for one in item.findings if one.path.startswith(below)]


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=lambda it: getattr(it, "name", it))
def test_each_field_of_the_page_is_judged_as_the_page_says(kind: str, row: Row) -> None:
    item = judged(manifest(kind, "x") | nested(row.name), stored=True)
    if row.name == "spec.retryDelayMinutes":
        assert item.result is Result.SAME  # without effect in Kueue as well
        return
    expected = {
        Outcome.SAME: [],
        Outcome.BETTER: [str(Outcome.BETTER)],
        Outcome.DIFFERS: [str(Outcome.DIFFERS)],
        Outcome.WARNED: [str(Outcome.WARNED)],
    }
    assert said(row, row.name, item)[:1] == expected[row.outcome]


@pytest.mark.parametrize("row", [row for _, row in KEYS], ids=lambda row: row.name)
def test_each_key_of_the_page_is_judged_as_the_page_says(row: Row) -> None:
    key = row.name + ("ValidUntilSeconds" if row.name.endswith("/") else "")
    for part in ("labels", "annotations"):
        found = job("train", 2)
        found["spec"]["template"].setdefault("metadata", {}).setdefault(part, {})[key] = "1"
        outcomes = [one.outcome for one in judged(found).findings if key in one.path]
        if row.name == names.QUEUE_LABEL or row.outcome in (Outcome.SAME, Outcome.LEFT):
            assert str(Outcome.GATED) not in outcomes
        else:
            assert outcomes[:1] == [str(row.outcome)]


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.name)
def test_each_setting_of_the_page_is_judged_as_the_page_says(row: Any) -> None:
    if row.name == "featureGates" or any(
        other.name.startswith(f"{row.name}.") for other in SETTINGS
    ):
        return  # an object whose fields have rows of their own
    found = judge_configuration(nested(row.name.replace("[]", "")))
    assert len(found) == 1
    result = {
        Support.SAME: Result.SAME,
        Support.NOT_NEEDED: Result.SAME,
        Support.DIFFERS: Result.DIFFERS,
        Support.NOT_YET: Result.NOT_YET,
    }[row.support]
    if "Needs the component" in row.note:
        result = Result.DIFFERS
    assert found[0].result is result
    assert not any(one.blocks for one in found)


def test_a_value_that_asks_for_what_rackgate_does_anyway_is_the_same() -> None:
    config = {
        "resources": {"quotaCheckStrategy": "BlockUndeclared"},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"TopologyAwareScheduling": True, "AdmissionGatedBy": False},
    }
    assert {one.result for one in judge_configuration(config)} == {Result.SAME}


def test_gates_that_rackgate_cannot_follow_are_named() -> None:
    config = {"featureGates": {"AdmissionGatedBy": True, "NoSuchGate": True}}
    found = {one.name: one for one in judge_configuration(config)}
    assert found["featureGates.AdmissionGatedBy"].result is Result.NOT_YET
    assert "no such gate" in found["featureGates.NoSuchGate"].findings[0].why
    for gates in (7, None, ["x"]):
        assert len(judge_configuration({"featureGates": gates})) <= 1


def test_a_version_that_the_api_server_rejects_blocks_and_a_served_one_does_not() -> None:
    served = served_versions()
    for kind, versions in served.items():
        item = judged(manifest(kind, "x", version="v1beta1", spec={}))
        assert item.blocks == ("v1beta1" not in versions)
    assert judged(topology("rack", version="v1beta1")).result is Result.SAME


def test_fields_and_kinds_that_kueue_does_not_have_are_named_with_a_suggestion() -> None:
    (finding,) = judged(cluster_queue("cq", cohort="team")).findings
    assert finding.path == "spec.cohort"
    assert "spec.cohortName" in finding.to_do
    assert "no such kind" in judged(manifest("Wombat", "x")).findings[0].why


@pytest.mark.parametrize(
    "controller", ["kueue.x-k8s.io/multikueue", "kueue.x-k8s.io/provisioning-request"]
)
def test_checks_that_nobody_would_answer_block(controller: str) -> None:
    item = judged(manifest("AdmissionCheck", "c", spec={"controllerName": controller}))
    assert item.blocks
    assert "ClusterQueues" in item.findings[0].to_do
    other = manifest("AdmissionCheck", "c", spec={"controllerName": "acme.example/c"})
    assert judged(other).result is Result.SAME


def test_kinds_of_multikueue_are_not_yet_and_block_only_as_manifests() -> None:
    config = manifest("MultiKueueConfig", "x", spec={})
    assert judged(config).blocks
    assert judged(config, stored=True).result is Result.NOT_YET
    assert not judged(config, stored=True).blocks


def queued(kind: str, version: str, **more: Any) -> Object:
    meta = {"name": "x", "namespace": "n", "labels": {names.QUEUE_LABEL: "q"}}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **more}


def test_objects_that_would_run_without_quota_block() -> None:
    for kind, version in (("Wombat", "acme.example/v1"), ("Deployment", "apps/v1"), ("Pod", "v1")):
        item = judged(queued(kind, version))
        assert item.blocks, kind
    assert judged(queued("Deployment", "apps/v1")).findings[0].component == "deploy/gangs"
    pod = judged(queued("Pod", "v1")).findings[0]
    assert (pod.component, pod.gate) == ("deploy/pods", "RackgatePodGroups")


def test_ended_pods_parts_of_jobs_and_others_without_a_queue_are_left_out() -> None:
    assert judge(queued("Pod", "v1", status={"phase": "Succeeded"}), stored=True) is None
    part = queued("Pod", "v1")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}
    part["metadata"]["ownerReferences"] = [owner]
    assert judge(part, stored=True) is None
    assert judge({"apiVersion": "v1", "kind": "Secret", "metadata": {}}, stored=False) is None
    assert judge(job("plain", 1, queue=None), stored=False) is None


def test_a_job_is_the_same_and_a_misspelled_queue_label_is_not() -> None:
    assert judged(job("train", 2, required="rack")).result is Result.SAME
    found = judged(job("train", 2, queue=None, labels={"kueue.x-k8s.io/queuename": "q"}))
    assert found.findings[0].path == "metadata.labels[kueue.x-k8s.io/queuename]"


def test_what_kueue_injected_into_a_started_job_is_no_difference() -> None:
    found = job("train", 2)
    meta = found["spec"]["template"]["metadata"]
    meta["labels"] = {names.PODSET_LABEL: "main", f"{names.GROUP}/local-queue-name": "q"}
    meta["annotations"] = {names.WORKLOAD_ANNOTATION: "job-train-1a2b3"}
    assert judged(found, stored=True).result is Result.SAME
    assert judged(found).result is Result.NOT_YET


def owned(kind: str, version: str, *conditions: Object) -> Object:
    found = workload()
    owner = {"apiVersion": version, "kind": kind, "name": "x", "controller": True}
    found["metadata"]["ownerReferences"] = [owner]
    return found | {"status": {"conditions": list(conditions)}}


def test_workloads_of_jobs_that_nobody_would_run_block_until_they_have_ended() -> None:
    assert judged(owned("Wombat", "acme.example/v1")).blocks
    assert judged(owned("Pod", "v1")).blocks
    assert not judged(owned("Job", "batch/v1")).blocks
    finished = {"type": "Finished", "status": "True"}
    assert not judged(owned("Wombat", "acme.example/v1", finished)).blocks
    assert not judged(
        owned("Wombat", "acme.example/v1", finished) | {"metadata": {}}, stored=True
    ).blocks


def test_flavors_differ_only_if_they_may_share_nodes() -> None:
    def three(**labels: str) -> dict[str, Result]:
        flavors = [
            flavor("a", nodeLabels={"pool": "a"}, topologyName="t"),
            flavor("b", nodeLabels={"pool": "b"}, topologyName="t"),
            flavor("c", nodeLabels=labels, topologyName="t"),
        ]
        items = with_shared_nodes([judged(one) for one in flavors], shared_nodes(flavors))
        return {one.name: one.result for one in items}

    assert set(three(pool="c").values()) == {Result.SAME}
    assert three(zone="c") == dict.fromkeys("abc", Result.DIFFERS)
    assert three(zone="c", pool="b") == {
        "a": Result.SAME,
        "b": Result.DIFFERS,
        "c": Result.DIFFERS,
    }


# Files, which anybody may have written.

ODD = [
    [],
    {},
    {"kind": 7, "apiVersion": ["a"], "metadata": 3},
    {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": {"a": 1}},
    {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": None, "spec": [1]},
    {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "spec": "text"},
    {"apiVersion": "kueue.x-k8s.io/", "kind": "ClusterQueue", "spec": {}},
    {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"labels": {names.QUEUE_LABEL: "q"}}},
    queued("Job", "batch/v1", spec={"template": 7}),
    queued("JobSet", "jobset.x-k8s.io/v1alpha2", spec={"replicatedJobs": {"a": 1}}),
    queued("Pod", "v1", status="Running"),
    {**workload(), "status": {"conditions": [7, None]}},
    {**workload(), "metadata": {"ownerReferences": [7, {"controller": True, "kind": 3}]}},
]


@pytest.mark.parametrize("obj", ODD, ids=str)
@pytest.mark.parametrize("stored", [True, False])
def test_malformed_objects_are_judged_without_an_error(obj: Any, stored: bool) -> None:
    if isinstance(obj, dict):
        judge(obj, stored=stored)


def test_an_object_with_a_hundred_thousand_unknown_fields_has_a_bounded_answer() -> None:
    spec = {f"field-{number}": 1 for number in range(100_000)}
    assert len(judged(manifest("ClusterQueue", "x", spec=spec)).findings) <= MAX_FINDINGS


def check(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["migrate", "check", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def written(folder: Path, name: str, *documents: Object | str) -> Path:
    texts = [one if isinstance(one, str) else yaml.safe_dump(one) for one in documents]
    path = folder / name
    path.write_text("---\n".join(texts))
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "is not plain YAML data"),
        ("a: &a [*a]", "is not plain YAML data"),
        ("a: 1\na: 2", 'duplicate key "a"'),
        ("[" * 200 + "]" * 200, "nested more than"),
        ("\x00", "is not plain YAML data"),
        ("kind: ConfigMap\ndata: {c: 'config.kueue.x-k8s.io: ['}", "is not plain YAML data"),
        ("just text", "no object of Kueue"),
        ("", "no object of Kueue"),
        ("kind: Secret\napiVersion: v1", "no object of Kueue"),
    ],
)
def test_a_bad_file_is_rejected_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    code, out, err = check(capsys, "-f", written(tmp_path, "bad.yaml", text))
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_files_that_are_too_large_too_many_or_not_there_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "cannot be read" in check(capsys, "-f", tmp_path / "none.yaml")[2]
    assert "has no files" in check(capsys, "-f", tmp_path)[2]
    big = written(tmp_path, "big.yaml", f"a: {'x' * 2_100_000}")
    monkeypatch.setattr(reading, "MAX_BYTES", 2 << 20)
    code, _, err = check(capsys, "-f", big)
    assert code == 2
    assert "is larger than 2 MiB" in err
    big.unlink()
    for number in range(3):
        written(tmp_path, f"{number}.yaml", cluster_queue(f"q{number}"), cluster_queue("r"))
    monkeypatch.setattr(reading, "MAX_FILES", 2)
    assert "more than 2 files" in check(capsys, "-f", tmp_path)[2]
    monkeypatch.setattr(reading, "MAX_FILES", 3)
    monkeypatch.setattr(reading, "MAX_OBJECTS", 5)
    assert "more than 5 objects" in check(capsys, "-f", tmp_path)[2]
    assert "cannot be used with" in check(capsys, "-f", tmp_path, "--state", tmp_path)[2]


CONFIG = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "manageJobsWithoutQueueName": True,
    "waitForPodsReady": {"timeout": "5m"},
}


def everything(folder: Path) -> Path:
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kueue-manager-config"},
        "data": {"controller_manager_config.yaml": yaml.safe_dump(CONFIG)},
    }
    found = {"kind": "List", "items": [cluster_queue("cq"), queued("Deployment", "apps/v1")]}
    return written(folder, "all.yaml", found, config_map, "text\n", workload())


def test_a_folder_is_checked_and_the_exit_code_says_whether_something_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything(tmp_path)
    code, out, _ = check(capsys, "-f", tmp_path, "-o", "json")
    report = json.loads(out)
    assert code == 3
    assert report["apiVersion"] == "migrate.rackgate.dev/v1"
    assert report["source"] == "files"
    kinds = [one["kind"] for one in report["items"]]
    assert kinds == ["ClusterQueue", "Deployment", "Workload", "Configuration", "Configuration"]
    assert report["summary"]["blocking"] == 1
    assert check(capsys, "-f", tmp_path, "-o", "yaml")[0] == 3
    code, out, _ = check(capsys, "-f", tmp_path)
    assert "BLOCKS: use the component deploy/gangs" in out
    assert "2 same" in out
    assert "1 of them blocks the switch" in out
    code, out, _ = check(capsys, "-f", written(tmp_path, "one.yaml", cluster_queue("cq")))
    assert (code, "Nothing blocks" in out) == (0, True)


def test_the_yaml_is_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything(tmp_path)
    _, as_json, _ = check(capsys, "-f", tmp_path, "-o", "json")
    _, as_yaml, _ = check(capsys, "-f", tmp_path, "-o", "yaml")
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_the_schema_has_all_fields_of_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything(tmp_path)
    code, out, _ = check(capsys, "--schema")
    assert (code, json.loads(out)) == (0, json.loads(json.dumps(schema())))
    report = json.loads(check(capsys, "-f", tmp_path, "-o", "json")[1])
    definitions = schema()["$defs"]
    assert set(report) == set(definitions["Report"]["properties"])
    item = next(one for one in report["items"] if one["findings"])
    assert set(item) == set(definitions["Item"]["properties"])
    assert set(item["findings"][0]) == set(definitions["Finding"]["properties"])


def test_names_of_a_file_cannot_control_the_terminal_or_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b[2J\nrm -rf $(x)"
    path = written(tmp_path, "odd.yaml", cluster_queue(name), queued("Wombat", "acme.example/v1"))
    _, out, _ = check(capsys, "-f", path)
    assert "\x1b" not in out
    assert main(["migrate", "plan", "--drain", "-f", str(path)]) == 3
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert not any(line.startswith("rm -rf") for line in text.splitlines())


# The plan.


def planned(*objects: Object, drain: bool = False, config: Object | None = None) -> Plan:
    items = [judged(one) for one in objects]
    items += judge_configuration(config or {})
    return plan_of(report_of(items, "files", ()), "kueue-system", drain=drain)


def test_every_step_has_a_check_and_a_way_back() -> None:
    for drain in (True, False):
        plan = planned(cluster_queue("cq"), drain=drain)
        for step in plan.steps:
            assert step.title
            assert step.commands
            assert step.verify
            assert step.go_back
        text = plan_text(plan)
        assert text.count("# Verify: ") == text.count("# Go back: ") == len(plan.steps)


def test_the_plan_names_what_blocks_and_the_components_and_gates_that_are_needed() -> None:
    plan = planned(
        cluster_queue("cq"),
        queued("Deployment", "apps/v1"),
        queued("Pod", "v1"),
        config={"manageJobsWithoutQueueName": True, "featureGates": {"AdmissionGatedBy": True}},
    )
    assert plan.steps[0].title == "Resolve what blocks the switch"
    assert plan.blocking == ("Deployment n/x", "Pod n/x")
    assert plan.components == ("deploy/gangs", "deploy/pods", "deploy/unlabelled")
    assert plan.gates == ("RackgatePodGroups",)
    translating = next(one for one in plan.steps if "configuration" in one.title)
    assert "featureGates.AdmissionGatedBy" in translating.why
    quiet = planned(cluster_queue("cq"), config={"manageJobsWithoutQueueName": False})
    assert quiet.components == ()
    assert quiet.steps[0].title == "Back up"


def test_draining_holds_each_clusterqueue_and_resumes_it() -> None:
    titles = [one.title for one in planned(cluster_queue("cq"), drain=True).steps]
    assert titles.index("Hold all queues, and wait for running jobs") < titles.index(
        "Stop Kueue, and keep its CRDs"
    )
    held = planned(cluster_queue("one"), cluster_queue("two"), drain=True).steps
    lines = [line for step in held for line in step.commands if "stopPolicy" in line]
    assert [re.findall(r"clusterqueue (\w+) .*\"(\w+)\"}}", one)[0] for one in lines] == [
        ("one", "Hold"),
        ("two", "Hold"),
        ("one", "None"),
        ("two", "None"),
    ]
    assert not any(
        "stopPolicy" in line for s in planned(cluster_queue("q")).steps for line in s.commands
    )


def test_the_commands_are_those_of_the_page() -> None:
    lines = [line.strip() for step in planned(cluster_queue("cq")).steps for line in step.commands]
    for words in (
        "They are needed to go\nback:",
        "no older version is stored:",
        "delete its webhook configurations:",
        "Remove its\nannotation:",
        "cluster can be deleted:",
        "rejects new ones:",
        "chart of Kueue to\ndelete them.",
    ):
        for line in commands("migrate-from-kueue", words).splitlines():
            assert line.strip() in lines


def test_after_the_step_that_stops_kueue_preflight_finds_no_conflict() -> None:
    steps = [line for step in planned(cluster_queue("cq")).steps for line in step.commands]
    (scale,) = [line for line in steps if " scale deployment " in line]
    _, _, space, _, _, name, replicas = scale.split()
    deployment: Object = {
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": space},
        "spec": {
            "replicas": int(replicas.removeprefix("--replicas=")),
            "template": {"spec": {"containers": [{"image": "registry.k8s.io/kueue/kueue:v0.16"}]}},
        },
    }

    def conflicts() -> list[str]:
        seen = ClusterSnapshot(version={"major": "1", "minor": "34"}, deployments=[deployment])
        return [one.what for one in preflight_findings(seen, "rackgate-system") if one.conflict]

    assert conflicts() == []
    deployment["spec"]["replicas"] = 1
    assert conflicts() == [f"Kueue's Deployment {space}/{name}"]


# What would be rejected, and what Kueue does not queue.


def rejected(obj: Object) -> list[str]:
    item = judged(obj)
    assert item.result is not Result.SAME
    assert all(one.why and one.to_do for one in item.findings if one.blocks)
    return [one.path for one in item.findings if one.blocks]


def ray_job(**spec: Any) -> Object:
    group = {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    cluster = {"headGroupSpec": group, "workerGroupSpecs": []}
    found = {"shutdownAfterJobFinishes": True, "entrypoint": "x", "rayClusterSpec": cluster}
    return queued("RayJob", "ray.io/v1", spec=found | spec)


def test_jobs_that_the_webhook_rejects_block_with_their_field() -> None:
    assert judged(ray_job()).result is Result.SAME
    assert rejected(ray_job(submissionMode="InteractiveMode")) == ["spec.submissionMode"]
    assert rejected(ray_job(shutdownAfterJobFinishes=False)) == ["spec.shutdownAfterJobFinishes"]
    on_node = job("train", 2)
    on_node["spec"]["template"]["spec"]["nodeName"] = "n1"
    assert rejected(on_node) == ["spec.template.spec.nodeName"]
    sliced = job("train", 5, required="rack")
    sliced["spec"]["template"]["metadata"]["annotations"] |= {
        "kueue.x-k8s.io/podset-slice-required-topology": "host",
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    assert any("podset-slice-size" in path for path in rejected(sliced))
    assert judged(on_node, stored=True).result is Result.SAME


def test_wrong_types_and_enums_in_objects_of_kueue_block_with_their_path() -> None:
    assert rejected(manifest("ClusterQueue", "x") | {"spec": 5}) == ["spec"]
    assert rejected(manifest("ClusterQueue", "x") | {"metadata": [1]}) == ["metadata"]
    assert rejected(manifest("ClusterQueue", "x") | {"metadata": {}}) == ["metadata.name"]
    assert rejected(manifest("ClusterQueue", "x", spec={"stopPolicy": "Halt"})) == [
        "spec.stopPolicy"
    ]


def test_a_ray_service_is_queued_through_its_clusters() -> None:
    for item in (
        judged(queued("RayService", "ray.io/v1")),
        judged(owned("RayService", "ray.io/v1")),
    ):
        assert (item.result, item.blocks) == (Result.DIFFERS, False)


def test_kinds_that_kueue_does_not_queue_are_left_out_and_a_cron_job_is_its_job() -> None:
    assert judge(queued("ReplicaSet", "apps/v1"), stored=False) is None
    made = {key: value for key, value in job("train", 2).items() if key in ("metadata", "spec")}
    cron = queued("CronJob", "batch/v1", spec={"schedule": "0 0 * * *", "jobTemplate": made})
    assert judged(cron).result is Result.SAME
    made["spec"]["template"]["spec"]["nodeName"] = "n1"
    assert rejected(cron) == ["spec.jobTemplate.spec.template.spec.nodeName"]
    bare = queued("CronJob", "batch/v1", spec={"jobTemplate": {"spec": {}}})
    assert judge(bare, stored=False) is None


def test_a_queue_name_in_the_wrong_place_or_of_the_wrong_type_is_explained() -> None:
    found = job("train", 2, queue=None)
    found["metadata"]["annotations"] = {names.QUEUE_LABEL: "q"}
    assert "make it a label: metadata.labels[" in judged(found).findings[0].to_do
    number = job("train", 2, queue=None)
    number["metadata"]["labels"] = {names.QUEUE_LABEL: 7}
    (finding,) = judged(number).findings
    assert (finding.why, finding.blocks) == ("must be a string", True)


def test_findings_without_effect_say_what_to_do() -> None:
    prebuilt = job("train", 2, labels={"kueue.x-k8s.io/prebuilt-workload-name": "w"})
    settings = judge_configuration({"integrations": {"frameworks": ["deployment"]}})
    for item in (judged(prebuilt), *settings):
        assert item.findings
        assert all(one.to_do for one in item.findings)


KUBECTL = """#!/bin/sh
case "$*" in
*"-o name") printf '%s\\n' $NAMES ;;
"get -o yaml "*) echo "$@" >> asked; cat listed.yaml ;;
esac
"""
SERVER = {"creationTimestamp": "2026-01-01T00:00:00Z", "generation": 2, "resourceVersion": "7"}


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("several", [True, False])
def test_the_saved_webhooks_can_be_applied_again(tmp_path: Path, several: bool) -> None:
    """With nothing but kubectl, sed and grep: the API server rejects a resourceVersion then."""
    hook = "validatingwebhookconfiguration.admissionregistration.k8s.io"
    listed = [f"{hook}/kueue-validating", *([f"{hook}/kueue-other"] if several else [])]
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": one.partition("/")[2], "uid": "u", **SERVER},
            "webhooks": [{"name": "w", "rules": [{"resources": ["jobs"]}]}],
        }
        for one in listed
    ]
    whole = {"apiVersion": "v1", "items": objects, "kind": "List", "metadata": SERVER}
    text = yaml.safe_dump(whole if several else objects[0], sort_keys=True)
    (tmp_path / "listed.yaml").write_text(text)
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    steps = planned(cluster_queue("cq")).steps
    (line,) = [one for step in steps for one in step.commands if one.endswith("> webhooks.yaml")]
    path = f"{tmp_path}:{os.environ['PATH']}"
    names_of_all = " ".join([*listed, f"{hook}/jobset"])
    environment = {"PATH": path, "NAMES": names_of_all}
    bash = shutil.which("bash") or "bash"
    subprocess.run([bash, "-c", line], cwd=tmp_path, env=environment, timeout=20, check=True)
    assert (tmp_path / "asked").read_text().split() == ["get", "-o", "yaml", *listed]
    saved = yaml.safe_load((tmp_path / "webhooks.yaml").read_text())
    found = saved["items"] if several else [saved]
    for was, one in zip(objects, found, strict=True):
        assert one == {**was, "metadata": {"name": was["metadata"]["name"]}}


def test_the_plan_needs_no_tool_that_may_be_missing() -> None:
    for drain in (False, True):
        steps = plan_of(report_of([], "cluster", ()), "kueue-system", drain=drain).steps
        for line in (one for step in steps for one in step.commands):
            assert not re.search(r"\bjq\b|\byq\b", line), line


def test_the_plan_saves_only_objects_of_kueue_and_stops_cert_manager() -> None:
    lines = [line for step in planned(cluster_queue("cq")).steps for line in step.commands]
    saved = [line for line in lines if "webhooks.yaml" in line or "apiservices.yaml" in line]
    assert len(saved) == 2
    assert any("cert-manager.io/inject-ca-from-" in line for line in lines)
