"""`rackgate osmo keys` and `render`, from the command line to what is printed."""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path

import pytest
import yaml

from rackgate_cli.__main__ import main
from rackgate_cli.osmo import arguments as osmo_arguments
from rackgate_cli.osmo import command as osmo
from rackgate_osmo import KaiVersion, Profile
from tests.support.osmo_command import POOL, RENDER, WORKFLOW, prepare, refused, rendered


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a pool and a workflow, and no cluster to be found."""
    prepare(tmp_path, monkeypatch)
    return tmp_path


# -- keys ----------------------------------------------------------------------------------


@pytest.mark.requirement("OSM-01", "OSM-03")
def test_keys_are_listed_in_the_pools_order_with_their_labels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["osmo", "keys", "my-pool", "--pool-file", "pool.yaml"]) == 0
    assert capsys.readouterr().out == (
        "LEVEL  KEY   NODE LABEL\n"
        "1      zone  topology.kubernetes.io/zone\n"
        "2      rack  topology.kubernetes.io/rack\n"
    )


@pytest.mark.requirement("OSM-03")
@pytest.mark.parametrize("form", [["--json"], ["-o", "json"], ["-o", "yaml"]])
def test_programs_get_keys_as_json_and_yaml(
    form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["osmo", "keys", "--pool-file", "pool.yaml", *form]) == 0
    (found,) = yaml.safe_load(capsys.readouterr().out)["pools"]
    assert found["pool"] == "my-pool"
    assert [key["key"] for key in found["topology_keys"]] == ["zone", "rack"]


def test_a_pool_without_keys_says_what_that_means(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text("name: plain\n")
    assert main(["osmo", "keys", "plain", "--pool-file", "pool.yaml"]) == 0
    assert "workflows cannot request a topology: plain" in capsys.readouterr().out


def test_several_pools_of_a_file_are_reported_apart(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(f"{POOL}---\nname: plain\n")
    assert main(["osmo", "keys", "--pool-file", "pool.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["my-pool", "1", "zone"]
    assert main(["osmo", "keys", "other", "--pool-file", "pool.yaml"]) == 1
    assert 'has no pool "other" (pools: my-pool, plain)' in capsys.readouterr().err


def test_a_pool_object_of_the_cluster_is_a_pool_of_a_file_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {key: value for key, value in yaml.safe_load(POOL).items() if key != "name"}
    manifest = {
        "apiVersion": "osmo.rackgate.dev/v1alpha1",
        "kind": "Pool",
        "metadata": {"name": "my-pool"},
        "spec": spec,
    }
    plain = rendered(capsys)
    (folder / "pool.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    assert rendered(capsys) == plain
    # Such an object is called what its metadata say, as in the cluster.
    named = {**manifest, "spec": {**spec, "name": "other"}}
    (folder / "pool.yaml").write_text(yaml.safe_dump(named))
    assert rendered(capsys) == plain
    (folder / "pool.yaml").write_text(yaml.safe_dump({**manifest, "kind": "Swimming"}))
    said = refused(capsys, "keys", "--pool-file", "pool.yaml")
    assert "contains osmo.rackgate.dev/v1alpha1 Swimming, not a pool" in said


# -- render --------------------------------------------------------------------------------


@pytest.mark.requirement("OSM-08", "OSM-16", "OSM-17", "TST-17")
def test_render_prints_topology_group_and_pods(capsys: pytest.CaptureFixture[str]) -> None:
    topology, group, pod = rendered(capsys, "-n", "team-a", "--names", "models=g1")
    assert (topology["kind"], topology["apiVersion"]) == ("Topology", "kai.scheduler/v1alpha1")
    assert group["metadata"]["name"] == "g1"
    assert group["metadata"]["namespace"] == pod["metadata"]["namespace"] == "team-a"
    assert group["spec"]["minMember"] == 2
    assert pod["metadata"]["annotations"] == {"pod-group-name": "g1"}
    assert "ownerReferences" not in pod["metadata"]
    assert pod["spec"]["schedulerName"] == "kai-scheduler"
    sizes = {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "2"}
    assert pod["spec"]["containers"] == [
        {
            "name": "task",
            "image": "trainer:1",
            "command": ["python", "train.py"],
            "env": [{"name": "EPOCHS", "value": "10"}, {"name": "DEBUG", "value": "true"}],
            "resources": {"requests": sizes, "limits": sizes},
        }
    ]


def reach(folder: Path, capsys: pytest.CaptureFixture[str], more: str, *args: str) -> object:
    """Node selector and tolerations of the pod, with more lines in the pool's file."""
    (folder / "pool.yaml").write_text(f"{POOL}{more}")
    spec = rendered(capsys, *args)[-1]["spec"]
    return spec.get("nodeSelector"), [one["key"] for one in spec.get("tolerations", ())]


@pytest.mark.requirement("OSM-17")
def test_pods_are_tied_to_the_nodes_of_their_pool_and_tolerate_their_taints(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = "nvidia.com/gpu"
    assert reach(folder, capsys, "") == (None, [gpu])
    assert reach(folder, capsys, "node_selector: {pool: a}\n") == ({"pool": "a"}, [gpu])
    tainted = "tolerations: [{key: team, operator: Exists}]\n"
    assert reach(folder, capsys, tainted) == (None, ["team", gpu])
    assert reach(folder, capsys, tainted, "--tolerate", "b") == (None, ["team", "b", gpu])
    assert reach(folder, capsys, "", "--no-gpu-toleration") == (None, [])
    assert reach(folder, capsys, "gpu_toleration: false\n") == (None, [])
    again = reach(folder, capsys, "gpu_toleration: false\n", "--gpu-toleration")
    assert again == (None, [gpu])


def test_the_selector_is_reported_where_pods_are_not_made(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(f"{POOL}node_selector: {{pool: a}}\n")
    assert main(["osmo", *RENDER, "--no-pods"]) == 0
    assert '(and spec.nodeSelector {"pool": "a"})' in capsys.readouterr().out


def test_pods_that_are_not_made_are_reported_with_what_they_must_carry(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["osmo", "render", "-f", "workflow.yaml", "--pool", "pool.yaml"]) == 0
    comments = [line for line in capsys.readouterr().out.splitlines() if line.startswith("#")]
    assert any("schedulerName kai-scheduler, no owner" in line for line in comments)
    assert '#   "two"' in comments
    assert '#     annotations: {"pod-group-name": "train-models"}' in comments
    assert len(rendered(capsys, "--no-pods")) == 2


@pytest.mark.requirement("OSM-17")
def test_programs_get_objects_and_the_marks_of_all_tasks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (found,) = rendered(capsys, "--json")
    assert set(found) == {"topology", "podGroups", "pods", "marks"}
    assert found["marks"] == [
        {
            "podGroup": "train-models",
            "tasks": ["one", "two"],
            "annotations": {"pod-group-name": "train-models"},
            "labels": {},
            "schedulerName": "kai-scheduler",
        }
    ]


def test_the_release_of_kai_decides_whose_topology_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert rendered(capsys, "--kai", "0.10")[0]["apiVersion"] == "kueue.x-k8s.io/v1alpha1"
    assert rendered(capsys, "--kai", "0.12")[0]["apiVersion"] == "kai.scheduler/v1alpha1"


def test_a_workflow_object_is_a_workflow_with_its_pool_and_namespace(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = rendered(capsys, "-n", "team-a")
    document = yaml.safe_load(WORKFLOW)
    metadata = {"name": "train", "namespace": "team-a"}
    head = {"apiVersion": "osmo.rackgate.dev/v1alpha1", "kind": "Workflow", "metadata": metadata}
    inner = {"groups": document["workflow"]["groups"], "resources": document["resources"]}
    for spec in (inner, {"workflow": inner}):
        manifest = {**head, "spec": {"pool": "my-pool", **spec}}
        (folder / "workflow.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
        assert rendered(capsys) == plain
    line = ["render", "-f", "workflow.yaml", "--pool", "pool.yaml"]
    assert 'is in namespace "team-a", the command line names "b"' in refused(
        capsys, *line, "-n", "b"
    )
    (folder / "pool.yaml").write_text(POOL.replace("my-pool", "other"))
    assert 'a Workflow of pool "my-pool", but --pool names "other"' in refused(capsys, *line)
    (folder / "workflow.yaml").write_text(yaml.safe_dump({**head, "kind": "Job"}))
    assert "contains osmo.rackgate.dev/v1alpha1 Job, not a workflow" in refused(capsys, *line)
    (folder / "workflow.yaml").write_text(WORKFLOW)
    assert "name the workflow's pool with --pool" in refused(capsys, *line[:3])


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ("68719476736", "68719476736"),
        ("64000000000.0", "64000000000"),
        ("40000000000.5", "40000000000500m"),
        ("0.5", "500m"),
        ("96Gi", "96Gi"),
    ],
)
def test_sizes_reach_the_pod_as_they_are_written(
    size: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "workflow.yaml").write_text(WORKFLOW.replace("memory: 1Gi", f"memory: {size}"))
    (container,) = rendered(capsys)[-1]["spec"]["containers"]
    assert container["resources"]["requests"]["memory"] == text


def test_a_time_of_day_stays_the_text_that_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "workflow.yaml").write_text(WORKFLOW.replace("EPOCHS: 10", "EPOCHS: 12:30"))
    (container,) = rendered(capsys)[-1]["spec"]["containers"]
    assert container["env"][0] == {"name": "EPOCHS", "value": "12:30"}


@pytest.mark.requirement("OSM-26")
def test_constraints_stand_in_pod_groups_and_never_in_the_affinity_of_a_pod(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = rendered(capsys)
    assert {found["kind"] for found in objects} == {"Topology", "PodGroup", "Pod"}
    pods = [found for found in objects if found["kind"] == "Pod"]
    assert pods
    for pod in pods:
        assert "affinity" not in pod["spec"]
        assert "topologySpreadConstraints" not in pod["spec"]


@pytest.mark.requirement("OSM-20")
def test_robust_leaves_out_levels_that_no_node_of_a_file_carries(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "nodes.yaml").write_text("- {labels: {topology.kubernetes.io/rack: r1}}\n")
    words = ("--profile", "robust", "--nodes", "nodes.yaml")
    assert rendered(capsys, *words)[0]["spec"] == {
        "levels": [{"nodeLabel": "topology.kubernetes.io/rack"}]
    }
    assert len(rendered(capsys, *words[:2])[0]["spec"]["levels"]) == 2
    assert len(rendered(capsys, *words, "-l", "pool=other")[0]["spec"]["levels"]) == 2


@pytest.mark.requirement("OSM-19")
def test_a_pool_without_keys_renders_plain_groups(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text("name: plain\nscheduler: other\n")
    workflow = WORKFLOW.replace(", topology: [{key: rack}]", "")
    (folder / "workflow.yaml").write_text(workflow)
    group, _ = rendered(capsys)
    assert group["spec"] == {"queue": "osmo-pool-plain", "minMember": 2}


def test_standard_input_serves_for_one_of_both(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = rendered(capsys)

    class Stdin:
        buffer = io.BytesIO(WORKFLOW.encode())

    monkeypatch.setattr(sys, "stdin", Stdin())
    assert main(["osmo", "render", "-f", "-", "--pool", "pool.yaml"]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == expected
    said = refused(capsys, "render", "-f", "-", "--pool", "-")
    assert "cannot both come from standard input" in said


def test_fields_that_no_pod_carries_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = WORKFLOW.replace("image: trainer:1", "image: trainer:1\n      outputs: [x]")
    (folder / "workflow.yaml").write_text(text)
    assert main(["osmo", "render", "-f", "workflow.yaml", "--pool", "pool.yaml"]) == 0
    assert capsys.readouterr().err == (
        "rackgate: fields of tasks that are not copied to Pods: outputs\n"
    )


# -- the verbs -----------------------------------------------------------------------------


def verbs() -> dict[str, argparse.ArgumentParser]:
    subparsers = argparse.ArgumentParser(prog="rackgate").add_subparsers()
    osmo.add_parser(subparsers)
    (group,) = (
        action
        for action in subparsers.choices["osmo"]._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(group.choices)


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_explains_itself_with_examples_and_exit_codes(verb: str) -> None:
    text = verbs()[verb].format_help()
    assert text.count(f"rackgate osmo {verb}") >= 2
    assert "exit codes:" in text


def test_the_arguments_offer_what_the_library_has() -> None:
    assert tuple(version.value for version in KaiVersion) == osmo_arguments.KAI_VERSIONS
    assert tuple(profile.value for profile in Profile) == osmo_arguments.PROFILES


# -- its page ------------------------------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "osmo.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
EXAMPLES = [block for block in BLOCKS if block.startswith("workflow:")]
(POOL_OF_PAGE,) = (block for block in BLOCKS if block.startswith("# four-keys.yaml"))


@pytest.mark.requirement("OSM-24", "TST-17")
def test_the_page_shows_what_is_made_of_the_four_use_cases(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(POOL_OF_PAGE)
    specs = []
    for example in EXAMPLES:
        (folder / "workflow.yaml").write_text(example)
        objects = rendered(capsys, "-n", "team-b")
        specs.append(objects[1]["spec"])
        shown = [yaml.safe_load(block) for block in BLOCKS if "\n  namespace: team-b" in block]
        if objects[1]["metadata"]["name"] == "uc3-train":
            assert shown == objects[1:3]
    one, two, three, four = specs
    tops = [spec.get("topologyConstraint", {}) for spec in specs]
    assert [list(top.values())[1:] for top in tops] == [
        ["nvidia.com/gpu-clique"],
        [],
        ["topology.kubernetes.io/zone"],
        ["topology.kubernetes.io/spine"],
    ]
    assert (one["minMember"], "subGroups" in one) == (4, False)
    assert two["subGroups"] == three["subGroups"]
    assert [part["minMember"] for part in four["subGroups"]] == [2, 2]


def test_the_page_shows_rejections_in_the_words_that_are_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pool.yaml").write_text(POOL_OF_PAGE)
    text = EXAMPLES[2].replace("gpu: 4", "gpus: 4", 1)
    before, _, after = text.rpartition("key: zone")
    (folder / "workflow.yaml").write_text(f"{before}key: region{after}")
    said = refused(capsys, *RENDER)
    assert said in PAGE.read_text()
