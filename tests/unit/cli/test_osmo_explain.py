"""`rackgate osmo explain`: what it takes, what it says, and what it does not let through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rackgate_cli.__main__ import main
from rackgate_osmo.explain.explanation import schema

ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"
POOL = {
    "name": "my-pool",
    "topology_keys": [{"key": "zone", "label": ZONE}, {"key": "rack", "label": RACK}],
}


def labels(zone: str, rack: str) -> dict[str, str]:
    return {ZONE: zone, RACK: rack}


def nodes(*racks: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [{"count": count, "labels": labels(zone, rack)} for zone, rack, count in racks]


def workflow(pods: int = 4, **resource: Any) -> dict[str, Any]:
    tasks = [{"name": f"t{number}"} for number in range(pods)]
    asked = {"cpu": 1, "topology": [{"key": "rack"}], **resource}
    return {
        "workflow": {"name": "w", "groups": [{"name": "g", "tasks": tasks}]},
        "resources": {"default": asked},
    }


class Asking:
    """Runs the command on files of a folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def file(self, name: str, content: Any) -> str:
        path = self.folder / name
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        path.write_text(text)
        return str(path)

    def run(self, asked: Any, found: Any, *more: str) -> tuple[int, str, str]:
        files = [
            *("-f", self.file("workflow.yaml", asked)),
            *("--pool", self.file("pool.yaml", POOL)),
            *("--nodes", self.file("nodes.yaml", found)),
        ]
        code = main(["osmo", "explain", *files, *more])
        printed = self.capsys.readouterr()
        return code, printed.out, printed.err

    def said(self, asked: Any, found: Any, *more: str) -> dict[str, Any]:
        code, out, _ = self.run(asked, found, "--json", *more)
        assert code == 0
        document: dict[str, Any] = json.loads(out)
        jsonschema.validate(document, schema())
        return document


@pytest.fixture
def asking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asking:
    return Asking(tmp_path, capsys)


@pytest.mark.requirement("OSM-25")
def test_a_person_reads_the_answer_first_and_where_pods_go(asking: Asking) -> None:
    code, out, _ = asking.run(workflow(), nodes(("a", "1", 3), ("a", "2", 4)))
    first, second, *_ = out.splitlines()
    assert code == 0
    assert first == "workflow w in pool my-pool: fits"
    assert second == "Possible: its 4 pods fit. KAI v0.13 does the same."
    assert "a/2: 4" in out


@pytest.mark.requirement("OSM-25")
def test_a_person_reads_which_group_is_short_of_how_much_and_where_it_is_closest(
    asking: Asking,
) -> None:
    _, out, _ = asking.run(workflow(), nodes(("a", "1", 3), ("a", "2", 2)))
    assert "Not possible: g does not fit." in out
    assert (
        'group "default" of 4 pods: does not fit in any single rack; '
        "the best candidate, a/1, fits 3, 1 pod missing"
    ) in out
    assert "a/1: 3, a/2: 2" in out


@pytest.mark.requirement("OSM-25")
def test_what_is_possible_and_what_kai_does_are_reported_apart(asking: Asking) -> None:
    asked = workflow(topology=[{"key": "zone"}])
    _, out, _ = asking.run(asked, nodes(("a", "1", 4)))
    assert "Possible: its 4 pods fit. But KAI v0.13 leaves g pending" in out
    assert "use --profile robust, with which KAI schedules it" in out
    robust = asking.said(asked, nodes(("a", "1", 4)), "--profile", "robust")
    assert (robust["kaiResult"], robust["groups"][0]["kai"]["deviations"]) == ("scheduled", [])


@pytest.mark.requirement("USR-13", "USR-14")
def test_all_preferences_that_can_be_had_together_are_had_beside_one_that_cannot(
    asking: Asking,
) -> None:
    tasks, resources = [], {}
    for group, pods in (("a", 3), ("b", 2), ("c", 2)):
        wishes = [{"key": "zone"}, {"key": "rack", "group": group}]
        topology = [{**wish, "requirementType": "preferred"} for wish in wishes]
        resources[group] = {"cpu": 1, "topology": topology}
        tasks += [{"name": f"{group}{at}", "resource": group} for at in range(pods)]
    asked = {
        "workflow": {"name": "w", "groups": [{"name": "g", "tasks": tasks}]},
        "resources": resources,
    }
    said = asking.said(asked, nodes(("x", "1", 4), ("y", "2", 3)))
    had = {one["group"]: one["together"] for one in said["groups"][0]["subgroups"]}
    assert had == {"default": False, "a": True, "b": True, "c": True}


def printed_node(name: str, zone: str, rack: str, cpu: str = "2", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels(zone, rack)},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def printed(*items: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


@pytest.mark.requirement("OSM-25")
def test_nodes_may_come_as_kubectl_prints_them_and_pods_take_their_room(asking: Asking) -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "other", "namespace": "default"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1500m"}}}],
        },
    }
    both = [printed_node("n1", "a", "1"), printed_node("n2", "a", "1")]
    free = asking.said(workflow(), printed(*both))
    assert free["answer"] == "scheduled"
    assert "counts as free" in free["warnings"][0]
    taken = asking.said(workflow(), printed(*both, pod))
    assert (taken["answer"], taken["warnings"]) == ("pending", [])
    assert taken["groups"][0]["shortages"][0]["takes"] == 2


def test_nodes_that_pods_may_not_use_are_left_out_and_named(asking: Asking) -> None:
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    found = printed(
        printed_node("n1", "a", "1", "4", unschedulable=True),
        printed_node("n2", "a", "1", "4", taints=[taint]),
    )
    said = asking.said(workflow(), found)
    assert said["answer"] == "pending"
    assert [(one["why"], one["names"]) for one in said["leftOut"]] == [
        ("taint maintenance", ["n2"]),
        ("unschedulable", ["n1"]),
    ]
    tolerant = asking.said(workflow(), found, "--tolerate", "maintenance")
    assert tolerant["answer"] == "scheduled"


def test_only_the_nodes_of_the_pool_count_where_a_selector_names_them(asking: Asking) -> None:
    found = nodes(("a", "1", 4), ("a", "2", 4))
    assert asking.said(workflow(8, topology=[]), found)["answer"] == "scheduled"
    said = asking.said(workflow(8, topology=[]), found, "-l", f"{RACK}=1,{ZONE}=a")
    assert (said["answer"], said["nodes"]) == ("pending", 4)
    with pytest.raises(SystemExit):
        asking.run(workflow(), found, "-l", "rack")
    assert "is not LABEL=VALUE" in asking.capsys.readouterr().err


def test_who_asks_for_gpus_tolerates_their_taint(asking: Asking) -> None:
    node = printed_node("n1", "a", "1", taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])
    node["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    assert asking.said(workflow(4, gpu=2), printed(node))["answer"] == "pending"
    assert asking.said(workflow(4, cpu="500m", gpu=2), printed(node))["answer"] == "scheduled"
    assert asking.said(workflow(4, cpu="500m"), printed(node))["answer"] == "pending"


def test_a_node_that_a_resource_excludes_is_not_used(asking: Asking) -> None:
    both = printed(printed_node("n1", "a", "1"), printed_node("n2", "a", "1"))
    asked = workflow(2, nodesExcluded=["n1"])
    assert asking.said(asked, both)["answer"] == "scheduled"
    assert asking.said(workflow(3, nodesExcluded=["n1"]), both)["answer"] == "pending"


def test_a_search_that_is_cut_off_claims_nothing(asking: Asking) -> None:
    said = asking.said(workflow(), nodes(("a", "1", 4)), "--steps", "1")
    assert (said["answer"], said["together"]) == ("undecided", None)
    assert "--steps" in said["summary"]
    assert "KAI v0.13 schedules it." in said["summary"]  # which follows without a search


def test_label_values_with_dots_are_reported_where_kai_may_place_over_two_racks(
    asking: Asking,
) -> None:
    said = asking.said(workflow(), nodes(("a", "b.c", 2), ("a.b", "c", 2)))
    assert (said["answer"], said["kaiResult"]) == ("pending", "unknown")
    (deviation,) = said["groups"][0]["kai"]["deviations"]
    assert deviation["name"] == "dots in label values"


def test_every_reason_that_rules_a_place_out_is_named(asking: Asking) -> None:
    asked = workflow(topology=[{"key": "zone"}])
    found = [{"count": 3, "labels": {ZONE: "a"}}, *nodes(("a", "1", 1))]
    said = asking.said(asked, found)
    names = [one["name"] for one in said["groups"][0]["kai"]["deviations"]]
    assert (said["kaiResult"], names) == ("pending", ["unlabelled nodes", "one-domain defect"])


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([{"count": -1}], "nodes[0].count: -1: must be a whole number"),
        ([{"count": 10**9}], "at most 50000 nodes are supported"),
        ([{"count": True}], "nodes[0].count: True: must be a whole number"),
        ([{"cpu": "much"}], 'nodes[0].cpu: "much" is not a quantity'),
        ([{"cpu": -1}], "nodes[0].cpu: -1: must not be negative"),
        ([{"labels": {ZONE: 1}}], "nodes[0].labels: must be an object with string values"),
        ([{"cpus": 1}], 'unknown field "cpus" (fields: count, cpu,'),
        ([{"name": "n"}, {"name": "n"}], 'has two nodes with the name "n"'),
        (["n1"], "nodes[0] is not an object with count, cpu and labels"),
        ({"kind": "ConfigMap"}, "is not a Node, a Pod or a list of them (kind: ConfigMap)"),
        ({"kind": "List", "items": [1]}, "items[0] is neither a Node nor a Pod"),
        ({"kind": "Node", "metadata": {}}, "metadata.name is missing"),
        ({"kind": "Node", "metadata": 1}, "document 1: Expected `object`"),
    ],
)
def test_a_bad_list_of_nodes_is_rejected_with_its_fault(
    asking: Asking, found: Any, says: str
) -> None:
    code, out, err = asking.run(workflow(), found)
    assert (code, out) == (2, "")
    assert says in err


def test_names_from_a_file_cannot_steer_a_terminal(asking: Asking) -> None:
    hostile = [{"count": 4, "labels": labels("a\x1b[2J", "1\u202e")}]
    code, out, _ = asking.run(workflow(), json.dumps(hostile))
    assert code == 0
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_only_one_thing_comes_from_standard_input(
    asking: Asking, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = asking.file("pool.yaml", POOL)
    assert main(["osmo", "explain", "-f", "-", "--pool", pool, "--nodes", "-"]) == 2
    assert "only one of workflow, pool and nodes" in capsys.readouterr().err


def test_the_schema_is_printed_without_any_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["osmo", "explain", "--schema"])
    assert ended.value.code == 0
    assert "WorkflowExplanation" in capsys.readouterr().out


@pytest.mark.requirement("OSM-25")
def test_an_empty_cluster_is_explained_too(asking: Asking) -> None:
    said = asking.said(workflow(), [])
    assert said["answer"] == "pending"
    assert "there is no usable node" in said["groups"][0]["summary"]
    bare = asking.said(workflow(), [{"count": 4, "labels": {ZONE: "a"}}])
    assert "no node has the label" in bare["groups"][0]["summary"]


@pytest.mark.requirement("OSM-25")
def test_a_key_that_no_node_carries_keeps_a_group_pending_with_what_apply_writes(
    asking: Asking,
) -> None:
    # `apply` and the assigner list every key of the pool, in the robust profile too.
    found = [{"count": 4, "labels": {RACK: "1"}}]
    robust = asking.said(workflow(), found, "--profile", "robust")
    assert (robust["answer"], robust["kaiResult"]) == ("scheduled", "pending")
    (deviation,) = robust["groups"][0]["kai"]["deviations"]
    assert deviation["name"] == "unlabelled nodes"
    assert "remove the keys that they lack from the pool" in deviation["help"]
    seed = asking.said(workflow(), found)
    assert "--profile robust" not in seed["groups"][0]["kai"]["deviations"][0]["help"]


@pytest.mark.requirement("OSM-25")
def test_pods_that_no_empty_node_takes_are_not_counted_in_nodes(asking: Asking) -> None:
    said = asking.said(workflow(cpu=4), [{"count": 4, "cpu": 2, "labels": labels("a", "1")}])
    (short,) = said["groups"][0]["shortages"]
    assert (short["missing"], short["missingNodes"]) == (4, 0)
    assert "no node is large enough, even if it is empty" in said["groups"][0]["summary"]


def two_kinds(large: int, small: int) -> dict[str, Any]:
    """Pods of 4 cpus in a rack, beside pods of one cpu anywhere."""
    asked = workflow(large, cpu=4)
    tasks = asked["workflow"]["groups"][0]["tasks"]
    tasks += [{"name": f"s{at}", "resource": "small"} for at in range(small)]
    asked["resources"]["small"] = {"cpu": 1}
    return asked


def test_missing_nodes_are_counted_for_the_kind_of_pod_that_is_missing(asking: Asking) -> None:
    asked = two_kinds(4, 1)
    asked["resources"]["small"] = {"cpu": 1, "topology": [{"key": "rack"}]}
    found = [{"count": 2, "cpu": 5, "labels": labels("a", "1")}]
    short = asking.said(asked, found)["groups"][0]["shortages"][0]
    assert (short["takes"], short["missing"], short["missingNodes"]) == (3, 2, 2)


@pytest.mark.requirement("OSM-25")
def test_the_closest_domain_is_judged_by_the_pods_of_the_group_alone(asking: Asking) -> None:
    small = [{"count": 40, "cpu": 1, "labels": labels("a", rack)} for rack in ("1", "2", "3", "4")]
    large = {"count": 3, "cpu": 4, "labels": labels("a", "9")}
    said = asking.said(two_kinds(4, 1), [*small, large])
    short = said["groups"][0]["shortages"][0]
    assert (short["takes"], short["missing"]) == (3, 1)
    assert short["rooms"][0] == {"domain": ["a", "9"], "pods": 3}


@pytest.mark.requirement("OSM-25")
def test_nodes_that_are_left_out_are_reported_first_and_not_said_to_lack_labels(
    asking: Asking,
) -> None:
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    found = printed(printed_node("n1", "a", "1", "4", taints=[taint]))
    _, out, _ = asking.run(workflow(), found)
    assert "excluded nodes: 1 (taint maintenance: 1)" in "\n".join(out.splitlines()[:4])
    assert "there is no usable node" in out
    assert "carries the label" not in out


@pytest.mark.requirement("OSM-25")
def test_a_taint_that_only_some_tasks_tolerate_keeps_the_others_away(asking: Asking) -> None:
    taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    tainted = printed_node("n1", "a", "1", "4", taints=taints)
    tainted["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    asked = workflow(1, gpu=1)
    asked["workflow"]["groups"][0]["tasks"].append({"name": "cpu", "resource": "plain"})
    asked["resources"]["plain"] = {"cpu": 1, "topology": [{"key": "rack"}]}
    assert asking.said(asked, printed(tainted))["answer"] == "pending"
    both = printed(tainted, printed_node("n2", "a", "1"))
    assert asking.said(asked, both)["answer"] == "scheduled"
    all_ = asking.said(asked, printed(tainted), "--tolerate", "nvidia.com/gpu")
    assert all_["answer"] == "scheduled"
    none = asking.said(asked, both, "--no-gpu-toleration")
    assert [one["why"] for one in none["leftOut"]] == ["taint nvidia.com/gpu"]


def test_a_task_group_that_stays_behind_is_shown_before_those_that_do_not(asking: Asking) -> None:
    asked = workflow(1)
    asked["workflow"]["groups"].append(
        {"name": "large", "tasks": workflow(4)["workflow"]["groups"][0]["tasks"]}
    )
    _, out, _ = asking.run(asked, nodes(("a", "1", 3)))
    shown = [line.split()[2] for line in out.splitlines() if line.startswith("TASK GROUP")]
    assert shown == ["large", "g"]


def test_who_asks_for_no_gpu_in_so_many_words_tolerates_no_taint(asking: Asking) -> None:
    node = printed_node("n1", "a", "1", taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])
    assert asking.said(workflow(1, gpu="0"), printed(node))["answer"] == "pending"
    unused = workflow(1)
    unused["resources"]["other"] = {"gpu": 1}
    assert asking.said(unused, printed(node))["answer"] == "pending"


def test_nodes_of_the_short_form_are_hosts_of_their_own(asking: Asking) -> None:
    keys = [*POOL["topology_keys"], {"key": "host", "label": "kubernetes.io/hostname"}]
    asked = workflow(2, topology=[{"key": "host"}])
    files = [
        *("-f", asking.file("workflow.yaml", asked), "--json"),
        *("--pool", asking.file("pool.yaml", {**POOL, "topology_keys": keys})),
    ]
    for cpu, answer in ((1, "pending"), (2, "scheduled")):
        found = [{"count": 3, "cpu": cpu, "labels": labels("a", "1")}]
        assert main(["osmo", "explain", *files, "--nodes", asking.file("n.yaml", found)]) == 0
        assert json.loads(asking.capsys.readouterr().out)["answer"] == answer


def test_a_pool_without_keys_is_a_matter_of_room_alone(asking: Asking) -> None:
    asked = workflow(3, topology=[])
    assert asking.said(asked, [{"count": 3, "labels": {}}])["kaiResult"] == "scheduled"
    short = asking.said(asked, [{"count": 2, "labels": {}}])
    assert short["groups"][0]["summary"].startswith("3 pods: the nodes fit 2, 1 pod missing")


# -- nodes and pods that are there ---------------------------------------------------------


def member(name: str, node: str, group: str = "w-g", space: str = "team-a") -> dict[str, Any]:
    container = {"name": "task", "resources": {"requests": {"cpu": "1"}}}
    annotations = {"pod-group-name": group}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": space, "annotations": annotations},
        "spec": {"nodeName": node, "containers": [container]},
    }


@pytest.mark.requirement("OSM-25")
def test_the_pods_of_a_running_workflow_are_its_own(asking: Asking) -> None:
    both = [printed_node("n1", "a", "1"), printed_node("n2", "a", "2")]
    pods = [member(f"p{at}", "n1") for at in range(2)]
    said = asking.said(workflow(2), printed(*both, *pods))
    (group,) = said["groups"]
    assert (said["answer"], said["kaiResult"]) == ("scheduled", "scheduled")
    assert said["summary"] == "Running: its 2 pods are bound."
    assert group["summary"] == "all 2 pods run"
    assert group["running"] == [{"domain": ["a", "1"], "pods": 2}]
    _, out, _ = asking.run(workflow(2), printed(*both, *pods))
    assert "bound: a/1: 2" in out
    # Those of another group, or of another namespace, are not.
    others = [member(f"p{at}", f"n{at % 2 + 1}", "other") for at in range(4)]
    assert asking.said(workflow(2), printed(*both, *others))["answer"] == "pending"
    assert asking.said(workflow(2), printed(*both, *pods), "-n", "b")["groups"][0]["running"] == []
    named = [member(f"p{at}", "n1", "mine") for at in range(2)]
    own = asking.said(workflow(2), printed(*both, *named), "--names", "g=mine")
    assert own["groups"][0]["summary"] == "all 2 pods run"


def test_a_group_of_which_only_some_pods_run_is_not_judged(asking: Asking) -> None:
    both = [printed_node("n1", "a", "1"), printed_node("n2", "a", "2")]
    said = asking.said(workflow(2), printed(*both, member("p", "n1")))
    (group,) = said["groups"]
    assert (said["answer"], said["kaiResult"]) == ("undecided", "unknown")
    assert group["summary"] == "1 of 2 pods are bound"
    assert group["kai"]["deviations"][0]["name"] == "partly running"
    assert said["summary"].startswith("Not decided: only some pods of g run.")


def groups(**tasks: int) -> dict[str, Any]:
    """Task groups of so many tasks of one cpu each, which may run anywhere."""
    listed = [
        {"name": name, "tasks": [{"name": f"{name}{at}"} for at in range(number)]}
        for name, number in tasks.items()
    ]
    return {"workflow": {"name": "w", "groups": listed}, "resources": {"default": {"cpu": 1}}}


def kai_of(said: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """What is said of KAI by task group: the result, and the names of the reasons."""
    return {
        group["name"]: (group["kai"]["result"], [one["name"] for one in group["kai"]["deviations"]])
        for group in said["groups"]
    }


@pytest.mark.requirement("OSM-25")
@pytest.mark.parametrize(
    ("count", "result"), [(5, "unknown"), (6, "unknown"), (7, "scheduled")], ids=str
)
def test_the_pods_that_a_group_still_lacks_take_room_before_another_group(
    asking: Asking, count: int, result: str
) -> None:
    each = [printed_node(f"n{at}", "a", "1", "1") for at in range(count)]
    pods = [member(f"p{at}", f"n{at}", "w-a") for at in range(2)]
    said = asking.said(groups(a=4, b=3), printed(*each, *pods))
    why = [] if result == "scheduled" else ["task groups before"]
    assert kai_of(said) == {"a": ("unknown", ["partly running"]), "b": (result, why)}
    assert said["together"] is None
    # Without any room for b nothing depends on a.
    full = asking.said(groups(a=4, b=count), printed(*each, *pods))
    assert kai_of(full)["b"] == ("pending", [])
    assert full["together"] is False
    # Pods of a that all run leave the rest to b.
    more = [member(f"p{at}", f"n{at}", "w-a") for at in range(4)]
    beside = asking.said(groups(a=4, b=count - 4), printed(*each, *more))
    assert kai_of(beside) == {"a": ("scheduled", []), "b": ("scheduled", [])}


def test_only_groups_that_run_in_part_are_called_so(asking: Asking) -> None:
    each = [printed_node(f"n{at}", "a", "1", "1") for at in range(4)]
    pods = [member("p0", "n0", "w-a"), member("p1", "n1", "w-b")]
    said = asking.said(groups(a=1, b=2), printed(*each, *pods))
    assert said["summary"].startswith("Not decided: only some pods of b run.")


@pytest.mark.requirement("OSM-25")
def test_pods_that_request_nothing_are_not_said_to_stay_pending_for_want_of_room(
    asking: Asking,
) -> None:
    full = printed(printed_node("n1", "a", "1"), member("p1", "n1", "other"))
    asked = workflow(2, cpu=None, topology=[])
    assert kai_of(asking.said(asked, full)) == {"g": ("pending", [])}
    asked["workflow"]["groups"][0]["tasks"][0]["image"] = "trainer:1"
    said = asking.said(asked, full)
    assert (said["answer"], kai_of(said)) == ("pending", {"g": ("unknown", ["unsized tasks"])})
    assert "1 task has no size" in said["groups"][0]["kai"]["deviations"][0]["text"]
    # Where there is room for pods of one cpu, there is room for those that request nothing.
    assert asking.said(asked, printed(printed_node("n1", "a", "1")))["kaiResult"] == "scheduled"
    # Nor for want of room on nodes with labels, or at the size of the largest.
    asked["resources"]["default"]["topology"] = [{"key": "rack"}]
    bare = {**printed_node("n2", "a", "1"), "metadata": {"name": "n2", "labels": {}}}
    lacking = asking.said(asked, printed(printed_node("n1", "a", "1", "1"), bare))
    assert (lacking["answer"], lacking["kaiResult"]) == ("pending", "unknown")
    # What sizes have no part in is still known.
    asked["resources"]["default"]["topology"] = [{"key": "zone"}]
    assert kai_of(asking.said(asked, full)) == {"g": ("pending", ["one-domain defect"])}


@pytest.mark.requirement("OSM-25")
def test_the_room_of_a_pod_that_terminates_is_not_said_to_be_taken_for_good(
    asking: Asking,
) -> None:
    node, pod = printed_node("n1", "a", "1"), member("p1", "n1", "other")
    assert kai_of(asking.said(workflow(2), printed(node, pod))) == {"g": ("pending", [])}
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    said = asking.said(workflow(2), printed(node, pod))
    assert (said["answer"], kai_of(said)) == ("pending", {"g": ("unknown", ["terminating pods"])})
    assert "1 pod terminates" in said["groups"][0]["kai"]["deviations"][0]["text"]
    # What there is no room for even then stays pending; what fits beside it is placed.
    assert kai_of(asking.said(workflow(3), printed(node, pod))) == {"g": ("pending", [])}
    assert asking.said(workflow(1), printed(node, pod))["kaiResult"] == "scheduled"
    # The pods of the group itself are no different.
    own = member("p1", "n1")
    own["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert kai_of(asking.said(workflow(2), printed(node, own)))["g"][0] == "unknown"
    # Room for all is there, but with labels only once the pod is gone.
    bare = {**printed_node("n2", "a", "1"), "metadata": {"name": "n2", "labels": {}}}
    some = asking.said(
        workflow(2, topology=[{"key": "rack", "requirementType": "preferred"}]),
        printed(node, bare, pod),
    )
    assert (some["answer"], kai_of(some)) == ("scheduled", {"g": ("unknown", ["terminating pods"])})


@pytest.mark.requirement("OSM-25")
def test_which_task_group_is_the_older_one_is_not_guessed_by_its_name(asking: Asking) -> None:
    found = [{"count": 3, "labels": labels("a", "1")}]
    # b may wait already, and a may have been added to the workflow: then KAI takes b first.
    said = asking.said(groups(a=2, b=2), found)
    assert kai_of(said) == {
        "a": ("unknown", ["task groups before"]),
        "b": ("unknown", ["task groups before"]),
    }
    assert "Their ages are not known" in said["groups"][0]["kai"]["deviations"][0]["text"]
    assert asking.said(groups(a=2, b=1), found)["kaiResult"] == "scheduled"
    # A group that fits nowhere takes no room from the other, whichever is older.
    assert kai_of(asking.said(groups(a=4, b=3), found)) == {
        "a": ("pending", []),
        "b": ("scheduled", []),
    }


@pytest.mark.requirement("OSM-25")
def test_cordoned_nodes_take_no_pods_but_kai_still_counts_them(asking: Asking) -> None:
    asked = workflow(2, topology=[{"key": "zone"}])
    open_ = printed_node("n1", "a", "1")
    alone = asking.said(asked, printed(open_))
    assert (alone["answer"], alone["kaiResult"]) == ("scheduled", "pending")
    # With a cordoned node in a second rack, KAI sees the zone.
    both = asking.said(asked, printed(open_, printed_node("n2", "a", "2", unschedulable=True)))
    assert (both["answer"], both["kaiResult"]) == ("scheduled", "scheduled")
    assert both["nodes"] == 1


@pytest.mark.requirement("OSM-25")
def test_pods_of_several_sizes_are_counted_as_large_as_the_largest(asking: Asking) -> None:
    asked = workflow(2, cpu=2)
    asked["workflow"]["groups"][0]["tasks"] += [{"name": f"s{at}", "resource": "s"} for at in "ab"]
    asked["resources"]["s"] = {"cpu": 1, "topology": [{"key": "rack"}]}
    rack = [{"cpu": 6, "labels": labels("a", "1")}]
    said = asking.said(asked, rack)
    (reason,) = said["groups"][0]["kai"]["deviations"]
    assert (said["answer"], said["kaiResult"], reason["name"]) == (
        *("scheduled", "pending"),
        "mixed sizes",
    )
    assert "counts each as large as the largest" in reason["text"]
    assert asking.said(asked, [{"cpu": 8, "labels": labels("a", "1")}])["kaiResult"] == "scheduled"
    # A mere preference is counted so, too; but then the robust profile helps.
    for resource in asked["resources"].values():
        resource["topology"] = [{"key": "rack", "requirementType": "preferred"}]
    short = asking.said(asked, rack)
    (reason,) = short["groups"][0]["kai"]["deviations"]
    assert (short["answer"], short["kaiResult"], reason["name"]) == (
        *("scheduled", "pending"),
        "mixed sizes",
    )
    assert "use --profile robust, with which KAI schedules it" in reason["help"]
    assert asking.said(asked, rack, "--profile", "robust")["kaiResult"] == "scheduled"
    for resource in asked["resources"].values():
        resource["topology"] = [{"key": "rack"}]
    # With GPUs in some of the pods only, it goes by sums; then nothing speaks against it.
    asked["resources"]["s"]["gpu"] = 1
    mixed = asking.said(asked, [{"cpu": 6, "gpu": 2, "labels": labels("a", "1")}])
    assert (mixed["answer"], mixed["kaiResult"]) == ("scheduled", "unknown")


def test_nodes_outside_the_pool_leave_it_open_unless_pods_are_tied_to_the_pool(
    asking: Asking,
) -> None:
    mine, other = {**labels("a", "1"), "pool": "a"}, {**labels("a", "2"), "pool": "b"}
    found = [{"count": 3, "labels": mine}, {"count": 4, "labels": other}]
    said = asking.said(workflow(), found, "-l", "pool=a")
    assert (said["answer"], said["kaiResult"], said["nodes"]) == ("pending", "unknown", 3)
    assert said["groups"][0]["kai"]["deviations"][0]["name"] == "nodes outside the pool"
    tied = asking.file("tied.yaml", {**POOL, "node_selector": {"pool": "a"}})
    line = ["-f", asking.file("workflow.yaml", workflow()), "--pool", tied, "--json"]
    assert main(["osmo", "explain", *line, "--nodes", asking.file("nodes.yaml", found)]) == 0
    said = json.loads(asking.capsys.readouterr().out)
    assert (said["answer"], said["kaiResult"], said["nodes"]) == ("pending", "pending", 3)


def test_pods_that_request_nothing_are_warned_of(asking: Asking) -> None:
    asked = workflow(2, cpu=None)
    pod = {"kind": "Pod", "metadata": {"name": "other", "namespace": "default"}}
    found = printed(printed_node("n1", "a", "1"), pod)
    assert asking.said(asked, found)["warnings"] == []  # nobody knows their pods
    asked["workflow"]["groups"][0]["tasks"][0]["image"] = "trainer:1"
    (warning,) = asking.said(asked, found)["warnings"]
    assert warning.startswith("1 task without a size: each counts as one cpu here")


@pytest.mark.requirement("OSM-25")
def test_a_large_pod_placed_before_takes_the_room_of_several_small_ones(asking: Asking) -> None:
    wish = {"key": "rack", "group": "a", "requirementType": "preferred"}
    tasks = [{"name": "large", "resource": "a"}]
    tasks += [{"name": f"small{at}", "resource": "b"} for at in range(2)]
    asked = {
        "workflow": {"name": "w", "groups": [{"name": "g", "tasks": tasks}]},
        "resources": {
            "a": {"cpu": 2, "topology": [wish]},
            "b": {"cpu": 1, "memory": 1, "topology": [{"key": "rack", "group": "b"}]},
        },
    }
    found = [
        {"cpu": cpu, "memory": memory, "labels": labels("a", rack)}
        for cpu, memory, rack in (
            (3, 8, "1"),
            (2, 0, "2"),
        )
    ]
    # The large pod may go to rack 1, where it leaves room for one small pod of two.
    said = asking.said(asked, found)
    assert (said["answer"], said["kaiResult"]) == ("scheduled", "unknown")
    found[0]["cpu"] = 4
    assert asking.said(asked, found)["kaiResult"] == "scheduled"
