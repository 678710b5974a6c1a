"""`rackgate osmo check`: each trap where it is, and silence where there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate_cli.__main__ import main
from rackgate_osmo import KaiVersion, Profile, read_pool, read_workflow
from rackgate_osmo.check import check

KEYS = ("zone", "spine", "rack")
Labels = Mapping[str, str]


def wishes(*topology: Mapping[str, str], groups: Sequence[int] = (2,)) -> dict[str, Any]:
    """A workflow with one subgroup for each number of tasks: `g0`, `g1` ... at the rack."""
    tasks, resources = [], {}
    for at, size in enumerate(groups):
        own = [{**one, "group": f"g{at}"} if one["key"] == "rack" else one for one in topology]
        resources[f"r{at}"] = {"cpu": 1, "topology": own}
        tasks += [{"name": f"t{at}-{number}", "resource": f"r{at}"} for number in range(size)]
    return {
        "workflow": {"name": "w", "groups": [{"name": "g", "tasks": tasks}]},
        "resources": resources,
    }


def pool(keys: Sequence[str] = KEYS) -> dict[str, Any]:
    return {"name": "p", "topology_keys": [{"key": key, "label": key} for key in keys]}


def warned(
    asked: Mapping[str, Any],
    nodes: Sequence[Labels] | None = None,
    keys: Sequence[str] = KEYS,
    **options: Any,
) -> list[tuple[str, str]]:
    read = read_pool(pool(keys))
    found = check(read, read_workflow(asked, read), nodes=nodes, **options)
    return [(one.why, one.path) for one in found]


def node(zone: str, spine: str, rack: str) -> Labels:
    return {"zone": zone, "spine": spine, "rack": rack}


RACK, ZONE = {"key": "rack"}, {"key": "zone"}
TWO_RACKS = [node("a", "1", "1"), node("a", "2", "2"), node("b", "3", "3"), node("b", "4", "4")]
ONE_SPINE = [node("a", "1", "1"), node("b", "2", "2")]


def test_keys_that_no_one_asks_for_are_no_trap_as_long_as_nodes_are_not_known() -> None:
    assert warned(wishes(RACK)) == []
    soft = {"key": "rack", "requirementType": "preferred"}
    assert warned(wishes(soft), keys=["rack"]) == []


def test_nodes_that_carry_every_label_are_no_trap() -> None:
    assert warned(wishes(RACK), TWO_RACKS) == []


def test_nodes_without_a_label_are_counted_for_all_keys_at_once() -> None:
    bare = [*TWO_RACKS, {"rack": "9"}]
    assert warned(wishes(RACK), bare) == [("unlabelled-nodes", "topology_keys")]
    read = read_pool(pool())
    (found,) = check(read, read_workflow(wishes(RACK), read), nodes=bare)
    assert found.message.startswith(
        "1 of 5 nodes lack a label of the pool's keys (zone on 1, spine on 1)"
    )


def test_a_key_that_no_node_carries_is_a_trap_in_the_robust_profile_too() -> None:
    bare = [{"rack": str(at)} for at in range(2)]
    assert warned(wishes(RACK), bare, ["zone", "rack"], profile=Profile.ROBUST) == [
        ("unlabelled-nodes", "topology_keys"),
    ]


@pytest.mark.requirement("OSM-20")
def test_an_ordinary_workflow_is_warned_once_of_each_cause() -> None:
    asked = wishes(ZONE, RACK, groups=(1, 2, 2, 3))
    groups = asked["workflow"]["groups"]
    asked["workflow"]["groups"] = [{**groups[0], "name": f"g{at}"} for at in range(5)]
    assert warned(asked) == [("one-domain", "groups[0]"), ("sibling-order", "groups[0]")]
    read = read_pool(pool())
    told = check(read, read_workflow(asked, read))
    assert [one.message.endswith(" (4 places more in this workflow)") for one in told] == [True] * 2
    assert warned(wishes(RACK, groups=(3, 2))) == []


def sized(*cpus: int, gpu: int | None = None, kind: str = "preferred") -> dict[str, Any]:
    """One group of tasks of these sizes; the first asks for GPUs, if any."""
    topology = [{"key": "rack", "requirementType": kind}]
    resources: dict[str, Any] = {
        f"r{at}": {"cpu": cpu, "topology": topology} for at, cpu in enumerate(cpus)
    }
    if gpu is not None:
        resources["r0"]["gpu"] = gpu
    tasks = [{"name": name, "resource": name} for name in resources]
    return {
        "workflow": {"name": "w", "groups": [{"name": "g", "tasks": tasks}]},
        "resources": resources,
    }


@pytest.mark.requirement("OSM-20")
def test_tasks_of_several_sizes_are_a_trap_unless_only_some_use_gpus() -> None:
    where = [("mixed-sizes", "groups[0]")]
    assert warned(sized(1, 2)) == warned(sized(1, 2, kind="required")) == where
    assert warned(sized(1, 1)) == []
    assert warned(sized(1, 2, gpu=1)) == []
    read = read_pool(pool())
    helps = [
        check(read, read_workflow(sized(1, 2, kind=kind), read))[0].help
        for kind in ("preferred", "required")
    ]
    assert ["robust" in help_ for help_ in helps] == [True, False]


def test_a_required_zone_is_a_trap_where_one_holds_a_single_finer_domain() -> None:
    asked = wishes(ZONE, RACK, groups=(2, 2))
    where = ("one-domain", "groups[0]")
    assert where in warned(asked)
    assert where not in warned(asked, TWO_RACKS)
    assert where in warned(asked, TWO_RACKS[:1])
    # All nodes are looked at for the top: two zones are two domains.
    assert where not in warned(asked, ONE_SPINE)


def test_below_a_zone_each_zone_counts_for_itself() -> None:
    asked = wishes(ZONE, {"key": "spine"}, RACK, groups=(2, 2))
    asked["resources"]["r0"]["topology"][1] = {"key": "spine", "group": "x"}
    assert ("one-domain", "groups[0]") in warned(asked, ONE_SPINE)


@pytest.mark.parametrize("kai", KaiVersion)
def test_the_robust_profile_is_not_warned_of_what_it_works_round(kai: KaiVersion) -> None:
    asked = wishes(ZONE, RACK, groups=(2, 3))
    options = {"profile": Profile.ROBUST, "kai": kai}
    assert warned(asked, TWO_RACKS[:1], **options) == []
    whys = {why for why, _ in warned(asked, TWO_RACKS[:1], kai=kai)}
    assert whys == {"one-domain", "sibling-order"}


def test_a_mere_preference_has_the_one_domain_defect_on_the_oldest_kai_alone() -> None:
    asked = wishes({"key": "zone", "requirementType": "preferred"})
    single = TWO_RACKS[:1]
    assert warned(asked, single, kai=KaiVersion.V0_10) == [("one-domain", "groups[0]")]
    assert warned(asked, single, kai=KaiVersion.V0_12) == []


def test_a_smaller_subgroup_before_a_larger_one_is_a_trap() -> None:
    where = ("sibling-order", "groups[0]")
    assert where in warned(wishes(RACK, groups=(2, 2, 3)), TWO_RACKS)
    assert where not in warned(wishes(RACK, groups=(3, 2, 2)), TWO_RACKS)


def test_label_values_that_read_alike_once_joined_are_a_trap() -> None:
    alike = [node("a", "b.c", "1"), node("a.b", "c", "1"), node("z", "z", "z")]
    assert ("dots", "topology_keys[1].label") in warned(wishes(RACK), alike)


def test_many_tasks_hold_the_scheduler_up() -> None:
    asked = wishes(RACK, groups=(100, 100))
    assert ("long-cycle", "groups[0].tasks") in warned(asked, TWO_RACKS)


def test_a_workflow_without_requirements_is_never_warned() -> None:
    assert warned(wishes(groups=(300,)), [{}]) == []


def files(folder: Path, asked: Any) -> list[str]:
    (folder / "workflow.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(asked))))
    (folder / "pool.yaml").write_text(yaml.safe_dump(pool()))
    return ["-f", str(folder / "workflow.yaml"), "--pool", str(folder / "pool.yaml")]


def test_warnings_do_not_fail_unless_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["osmo", "check", *files(tmp_path, wishes(ZONE, RACK, groups=(1, 2)))]
    assert main(given) == 0
    out = capsys.readouterr().out
    assert out.startswith("workflow w: 2 warnings\n")
    assert "what would help" in out
    assert main([*given, "--strict-exit"]) == 1


def test_programs_get_every_warning_with_path_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = wishes(ZONE, RACK, groups=(1, 2))
    assert main(["osmo", "check", *files(tmp_path, asked), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["warnings"]
    assert [set(one) for one in found] == [{"why", "path", "message", "help"}] * 2


def test_what_has_no_trap_is_reported_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(yaml.safe_dump([{"count": 1, "labels": dict(one)} for one in TWO_RACKS]))
    given = ["osmo", "check", *files(tmp_path, wishes(RACK)), "--nodes", str(nodes)]
    assert main([*given, "--strict-exit"]) == 0
    known = capsys.readouterr().out
    assert "no warnings" in known
    assert "nodes are not known" not in known
    assert main(given[:-2]) == 0
    assert "labels of nodes are not checked" in capsys.readouterr().out
