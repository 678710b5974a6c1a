"""Pools and workflows from data: what is read, what is refused, where and why."""

from __future__ import annotations

import copy
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_osmo import (
    Pool,
    RejectedError,
    Rejection,
    Resource,
    Task,
    TaskGroup,
    Workflow,
    build_podgroups,
    read_pool,
    read_workflow,
    topology_of,
)
from rackgate_osmo.model.rejections import MAX_REJECTIONS
from rackgate_osmo.model.workflow import MAX_TASKS

KEYS: Final = [
    {"key": "zone", "label": "topology.kubernetes.io/zone"},
    {"key": "rack", "label": "rack"},
]
POOL: Final = read_pool({"name": "my-pool", "backend": "b", "topology_keys": KEYS})


def document(**resources: Any) -> dict[str, Any]:
    """A workflow of two tasks that use the resource `default`, or the first one given."""
    name = next(iter(resources), "default")
    tasks = [{"name": "t1", "resource": name}, {"name": "t2", "resource": name}]
    workflow = {"name": "w", "groups": [{"name": "g", "tasks": tasks}]}
    return {"workflow": workflow, "resources": resources}


def refused(data: Any, *, strict: bool = False) -> list[Rejection]:
    with pytest.raises(RejectedError) as caught:
        read_workflow(data, POOL, strict=strict)
    return list(caught.value.rejections)


def reasons(refusals: list[Rejection]) -> list[tuple[str, str]]:
    return [(refusal.why, refusal.path) for refusal in refusals]


@pytest.mark.requirement("OSM-04", "OSM-05")
def test_a_requirement_takes_defaults_and_a_task_the_default_resource() -> None:
    workflow = read_workflow(document(default={"topology": [{"key": "rack"}]}), POOL)
    task = workflow.groups[0].tasks[0]
    resource = workflow.resource_of(Task(name="without"))
    assert resource == workflow.resource_of(task)
    assert resource is not None
    (one,) = resource.topology
    assert (one.group, one.requirementType) == ("default", "required")


@pytest.mark.requirement("OSM-05")
def test_resources_may_stand_inside_the_workflow_beside_it_or_in_both() -> None:
    outside = document(a={"cpu": 1}, b={"cpu": 2})
    inside = copy.deepcopy(outside)
    inside["workflow"]["resources"] = inside.pop("resources")
    both = copy.deepcopy(outside)
    both["workflow"]["resources"] = {"b": both["resources"].pop("b")}
    read = [read_workflow(data, POOL) for data in (outside, inside, both, inside["workflow"])]
    assert all(one == read[0] for one in read)
    both["resources"]["b"] = {}
    assert reasons(refused(both)) == [("duplicate-resource", "workflow.resources.b")]


@pytest.mark.requirement("OSM-05")
def test_the_path_says_where_the_resource_stands() -> None:
    data = document(default={"topology": [{"key": "rak"}]})
    data["workflow"]["resources"] = data.pop("resources")
    (refusal,) = refused(data)
    assert refusal.path == "workflow.resources.default.topology[0].key"
    assert str(refusal) == (
        'workflow.resources.default.topology[0].key: task "t1" and 1 more: key "rak" is '
        'not in pool "my-pool" (its keys, coarsest first: zone, rack)'
    )


@pytest.mark.requirement("OSM-22")
def test_tasks_without_groups_are_a_group_each() -> None:
    data = {"workflow": {"name": "w", "tasks": [{"name": "a"}, {"name": "b"}]}}
    workflow = read_workflow(data, POOL)
    assert [(group.name, len(group.tasks)) for group in workflow.groups] == [
        ("a-group", 1),
        ("b-group", 1),
    ]
    data["workflow"]["tasks"] = [{"name": "a", "resource": "nope"}, {"nam": "b"}]
    assert reasons(refused(data)) == [
        ("missing", "workflow.tasks[1].name"),
        ("unknown-resource", "workflow.tasks[0].resource"),
    ]


def test_other_fields_of_a_task_are_carried() -> None:
    data = document(default={})
    data["version"] = 2
    data["workflow"]["timeout"] = {"exec_timeout": "1h"}
    data["workflow"]["groups"][0]["barrier"] = True
    task = {"name": "t3", "image": "i", "command": ["c"], "inputs": [{"task": "t1"}], "lead": True}
    data["workflow"]["groups"][0]["tasks"].append(task)
    group = read_workflow(data, POOL).groups[0]
    assert group.tasks[2].model_dump(exclude_unset=True) == task
    assert group.model_extra == {"barrier": True}


@pytest.mark.requirement("OSM-04", "OSM-06", "OSM-07")
def test_everything_is_reported_at_once_each_part_on_its_own() -> None:
    data = document(
        a={"topology": [{"key": "rak", "group": "ü"}], "gpu": 8},
        b={"topologies": []},
        c={"topology": [{"key": "rack", "requirementType": "hard"}], "memory": "much"},
        d={"topology": [{"key": "rack"}, {"key": "rack"}]},
        e={"topology": [{"key": "zone", "group": "z"}]},
        f={"topology": [{"key": "zone", "group": "z", "requirementType": "preferred"}]},
    )
    tasks = data["workflow"]["groups"][0]["tasks"]
    tasks += [{"name": f"u-{name}", "resource": name} for name in "bcdefg"]
    tasks += [{"name": "t1"}, {"name": 7}, {"resource": "a"}]
    assert reasons(refused(data)) == [
        ("unknown-field", "resources.b.topologies"),
        ("requirement-type", "resources.c.topology[0].requirementType"),
        ("quantity", "resources.c.memory"),
        ("type", "workflow.groups[0].tasks[9].name"),
        ("missing", "workflow.groups[0].tasks[10].name"),
        ("duplicate-task", "workflow.groups[0].tasks[8].name"),
        ("unknown-resource", "workflow.groups[0].tasks[7].resource"),
        ("unknown-key", "resources.a.topology[0].key"),
        ("group", "resources.a.topology[0].group"),
        ("duplicate-key", "resources.d.topology[1].key"),
        ("conflict", "resources.f.topology[0].requirementType"),
    ]


@pytest.mark.requirement("OSM-07", "OSM-22")
def test_a_conflict_reaches_no_further_than_its_task_group() -> None:
    data = document(
        a={"topology": [{"key": "rack", "group": "g"}]},
        b={"topology": [{"key": "rack", "group": "g", "requirementType": "preferred"}]},
    )
    groups = data["workflow"]["groups"]
    groups.append({"name": "h", "tasks": [{"name": "t1", "resource": "b"}]})
    assert len(read_workflow(data, POOL).groups) == 2
    groups[1]["tasks"].append({"name": "t2", "resource": "a"})
    (refusal,) = refused(data)
    assert (refusal.why, refusal.path) == ("conflict", "resources.a.topology[0].requirementType")
    assert refusal.message == (
        'task "t2" has group "g" of key "rack" required, but task "t1" has it preferred: '
        "use one type, or another group"
    )


def test_a_resource_that_no_task_uses_may_name_keys_of_another_pool() -> None:
    data = document(default={}, unused={"topology": [{"key": "planet"}]})
    assert read_workflow(data, POOL).resources["unused"].topology[0].key == "planet"


@pytest.mark.requirement("OSM-04")
def test_a_misspelt_field_is_answered_with_the_right_one() -> None:
    (refusal,) = refused(document(default={"topology": [{"key": "rack", "requirement_type": "x"}]}))
    assert refusal.message == (
        'unknown field "requirement_type"; did you mean "requirementType"? '
        "(allowed: key, group, requirementType)"
    )


@pytest.mark.parametrize("size", [-1, True, "many", [], float("nan"), float("inf"), "1" * 300])
def test_sizes_are_quantities(size: Any) -> None:
    assert reasons(refused(document(default={"gpu": size}))) == [
        ("quantity", "resources.default.gpu")
    ]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda data: data.pop("workflow"), [("missing", "name"), ("missing", "groups")]),
        (lambda data: data.update(workflow=[]), [("type", "workflow")]),
        (lambda data: data.update(resources=[]), [("type", "resources")]),
        (lambda data: data.update(resources={1: {}}), [("name", "resources")]),
        (lambda data: data["workflow"].pop("name"), [("missing", "workflow.name")]),
        (lambda data: data["workflow"].update(name=1), [("type", "workflow.name")]),
        (lambda data: data["workflow"].update(groups={}), [("type", "workflow.groups")]),
        (lambda data: data["workflow"].update(groups=[]), [("empty", "workflow.groups")]),
        (lambda data: data["workflow"].update(groups="g"), [("type", "workflow.groups")]),
        (lambda data: data["workflow"].update(groups=[7]), [("type", "workflow.groups[0]")]),
        (
            lambda data: data["workflow"]["groups"][0].update(tasks=[]),
            [("no-tasks", "workflow.groups[0].tasks")],
        ),
        (
            lambda data: data["workflow"]["groups"].append(data["workflow"]["groups"][0]),
            [("duplicate-group", "workflow.groups[1].name")],
        ),
        (
            lambda data: data["workflow"].update(tasks=[{"name": "t"}]),
            [("groups-and-tasks", "workflow.tasks")],
        ),
    ],
)
def test_a_workflow_of_the_wrong_form_is_rejected(
    change: Any, wanted: list[tuple[str, str]]
) -> None:
    data = document(default={})
    change(data)
    assert reasons(refused(data)) == wanted


@pytest.mark.parametrize("data", [None, 1, "workflow", [], [{}]])
def test_what_is_no_mapping_is_neither_pool_nor_workflow(data: Any) -> None:
    assert reasons(refused(data)) == [("type", "")]
    with pytest.raises(RejectedError):
        read_pool(data)


@pytest.mark.requirement("OSM-21")
def test_more_tasks_than_can_be_handled_are_rejected_before_they_are_read() -> None:
    data = document(default={})
    data["workflow"]["groups"][0]["tasks"] = [None] * (MAX_TASKS + 1)
    assert reasons(refused(data)) == [("too-long", "workflow.groups")]


def test_very_many_rejections_are_cut_and_counted() -> None:
    data = document(default={})
    data["workflow"]["groups"][0]["tasks"] = [
        {"name": f"t{index}", "resource": f"r{index}"} for index in range(1000)
    ]
    found = refused(data)
    assert len(found) == MAX_REJECTIONS + 1
    assert found[-1].message == "900 more rejections are not shown"


def test_tasks_with_one_mistake_in_common_are_reported_once() -> None:
    data = document(default={})
    data["workflow"]["groups"][0]["tasks"] = [
        {"name": f"t{index}", "resource": "nope"} for index in range(1000)
    ]
    (refusal,) = refused(data)
    assert refusal.message.startswith('task "t0" and 999 more: resource "nope" does not exist')


@pytest.mark.requirement("OSM-04")
def test_strict_takes_one_set_of_keys_over_the_whole_workflow() -> None:
    data = document(
        a={"topology": [{"key": "zone"}, {"key": "rack"}]}, b={"topology": [{"key": "zone"}]}, c={}
    )
    groups = data["workflow"]["groups"]
    groups.append(
        {"name": "h", "tasks": [{"name": "u", "resource": "b"}, {"name": "v", "resource": "c"}]}
    )
    assert read_workflow(data, POOL)
    assert reasons(refused(data, strict=True)) == [("mixed-keys", "resources.b.topology")]


@pytest.mark.requirement("OSM-06")
def test_a_given_name_that_is_another_groups_usual_one_is_rejected() -> None:
    groups = [{"name": name, "tasks": [{"name": "t"}]} for name in ("a", "b")]
    workflow = read_workflow({"name": "w", "groups": groups}, POOL)
    for names in ({"a": "w-b"}, {"a": "x", "b": "x"}):
        with pytest.raises(RejectedError) as caught:
            build_podgroups(POOL, workflow, names)
        assert reasons(list(caught.value.rejections)) == [("duplicate-name", "names.b")]
    # A group that is not in the workflow takes no name away.
    assert build_podgroups(POOL, workflow, {"a": "x", "c": "x"}).pods["a", "t"].pod_group == "x"


def test_no_task_can_name_what_stands_for_a_resource_that_could_not_be_read() -> None:
    data = document()
    data["workflow"]["groups"][0]["tasks"][0]["resource"] = "\0"
    assert ("unknown-resource", "workflow.groups[0].tasks[0].resource") in reasons(refused(data))


def test_models_made_by_hand_are_judged_where_objects_are_built() -> None:
    resources = {"a": Resource.model_validate({"topology": [{"key": "planet"}]})}
    groups = (TaskGroup(name="g", tasks=(Task(name="t", resource="a"),)),)
    workflow = Workflow(name="w", groups=groups, resources=resources)
    with pytest.raises(RejectedError) as caught:
        build_podgroups(POOL, workflow)
    assert reasons(list(caught.value.rejections)) == [
        ("unknown-key", "resources.a.topology[0].key")
    ]
    for call in (topology_of, lambda pool: build_podgroups(pool, workflow)):
        with pytest.raises(RejectedError):
            call(Pool(name="Bad Name"))


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["rack", "zone", "required", "a", "\ud800", "\0", "x" * 400]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "groups",
                    "tasks",
                    "resources",
                    "resource",
                    "topology",
                    "key",
                    "group",
                    "a",
                ]
            )
            | st.integers()
            | st.none(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.data())
def test_no_data_does_more_than_being_rejected(data: st.DataObject) -> None:
    """Any part of a good document may be replaced by anything."""
    whole: dict[str, Any] = document(
        a={"cpu": 1, "topology": [{"key": "rack", "group": "g"}]}, default={}
    )
    holder: Any = whole
    while True:
        steps = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        step = data.draw(st.sampled_from(steps))
        if (
            data.draw(st.booleans())
            or not isinstance(holder[step], dict | list)
            or not holder[step]
        ):
            break
        holder = holder[step]
    holder[step] = data.draw(junk)
    pool: Any = {"name": "my-pool", "topology_keys": copy.deepcopy(KEYS)}
    if data.draw(st.booleans()):
        pool[data.draw(st.sampled_from(["name", "scheduler", "topology_keys", "backend"]))] = (
            data.draw(junk)
        )
    for refusal in refusals_of_both(pool, whole):
        assert refusal.message
        assert refusal.why
        str(refusal).encode()


def refusals_of_both(pool: Any, data: Any) -> tuple[Rejection, ...]:
    try:
        read = read_pool(pool)
        build_podgroups(read, read_workflow(data, read))
    except RejectedError as error:
        return error.rejections or (Rejection("pool", "", "", None, "none is told"),)
    return ()
