"""Pools from data: what is read, what is refused, where and why."""

from __future__ import annotations

from typing import Any, Final

import pytest

from rackgate_osmo import (
    RejectedError,
    Rejection,
    Resource,
    read_pool,
    tolerates,
    tolerations_of,
    topology_of,
)

KEYS: Final = [
    {"key": "zone", "label": "topology.kubernetes.io/zone"},
    {"key": "rack", "label": "rack"},
]
POOL: Final = read_pool({"name": "my-pool", "backend": "b", "topology_keys": KEYS})


def pool_refused(**fields: Any) -> list[Rejection]:
    with pytest.raises(RejectedError) as caught:
        read_pool({"name": "p", **fields})
    return list(caught.value.rejections)


def reasons(refusals: list[Rejection]) -> list[tuple[str, str]]:
    return [(refusal.why, refusal.path) for refusal in refusals]


@pytest.mark.requirement("OSM-01")
def test_a_pool_without_keys_is_one_for_any_scheduler() -> None:
    pool = read_pool(
        {"name": "p", "scheduler": "other", "description": "text", "topology_keys": None}
    )
    assert pool.topology_keys == ()
    assert topology_of(pool) is None


@pytest.mark.requirement("OSM-01")
def test_keys_keep_their_order_and_names_follow_from_the_pool() -> None:
    assert [key.key for key in POOL.topology_keys] == ["zone", "rack"]
    assert (POOL.osmo_name, POOL.topology_name) == (
        "osmo-pool-my-pool",
        "osmo-pool-my-pool-topology",
    )


@pytest.mark.requirement("OSM-02", "OSM-07")
def test_a_pool_is_rejected_with_everything_at_once() -> None:
    keys = [
        {"key": "host", "label": "kubernetes.io/hostname"},
        {"key": "rack", "label": "no label"},
        {"key": "rack", "label": "kubernetes.io/hostname"},
    ]
    assert reasons(pool_refused(scheduler="volcano", topology_keys=keys)) == [
        ("scheduler", "topology_keys"),
        ("hostname-level", "topology_keys[0].label"),
        ("label", "topology_keys[1].label"),
        ("duplicate-key", "topology_keys[2].key"),
        ("duplicate-label", "topology_keys[2].label"),
    ]


@pytest.mark.requirement("OSM-07")
@pytest.mark.parametrize(
    "label", ["", "/", "a/", "/a", "a//b", "a/b/c", "A.example.com/rack", "x" * 64, "ä", "rack\n"]
)
def test_what_no_node_can_carry_is_no_label(label: str) -> None:
    assert reasons(pool_refused(topology_keys=[{"key": "k", "label": label}])) == [
        ("label", "topology_keys[0].label")
    ]


@pytest.mark.parametrize("name", ["", "My_Pool", "a b", "-a", "a" * 54, "a\n"])
def test_a_pool_whose_objects_could_have_no_name_is_rejected(name: str) -> None:
    (refusal,) = pool_refused(name=name)
    assert (refusal.why, refusal.path, refusal.value) == ("name", "name", name)


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ([{"key": "zone"}], [("missing", "topology_keys[0].label")]),
        ([{"key": 1, "label": "l"}], [("type", "topology_keys[0].key")]),
        ([{"key": "", "label": "l"}], [("empty", "topology_keys[0].key")]),
        (
            [{"key": "k", "label": "l", "lable": "l"}],
            [("unknown-field", "topology_keys[0].lable")],
        ),
        ({"key": "k"}, [("type", "topology_keys")]),
        (["zone"], [("type", "topology_keys[0]")]),
    ],
)
def test_keys_of_the_wrong_form_are_rejected(keys: Any, wanted: list[tuple[str, str]]) -> None:
    assert reasons(pool_refused(topology_keys=keys)) == wanted


TOLERATION: Final = {"key": "team", "value": "a", "effect": "NoSchedule"}


def test_a_pool_says_which_nodes_are_its_own() -> None:
    selector = {"example.com/pool": "a"}
    pool = read_pool({"name": "p", "node_selector": selector, "tolerations": [TOLERATION]})
    assert pool.node_selector == selector
    assert [one.to_pod_toleration() for one in pool.tolerations] == [TOLERATION]
    bare = read_pool({"name": "p", "node_selector": None, "tolerations": None})
    assert (bare.node_selector, bare.tolerations, bare.gpu_toleration) == ({}, (), True)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"node_selector": {"no label": "a"}}, ("label", 'node_selector["no label"]')),
        ({"node_selector": {"pool": "-"}}, ("label-value", "node_selector.pool")),
        ({"node_selector": {"pool": 1}}, ("type", "node_selector.pool")),
        ({"tolerations": [{"value": "a"}]}, ("type", "tolerations[0]")),
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
            ("type", "tolerations[0]"),
        ),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 3}]}, ("type", "tolerations[0]")),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, ("type", "tolerations[0].effect")),
        ({"tolerations": [{"keys": "a"}]}, ("unknown-field", "tolerations[0].keys")),
        ({"gpu_toleration": "yes"}, ("type", "gpu_toleration")),
    ],
)
def test_what_no_pod_could_carry_is_rejected(
    fields: dict[str, Any], where: tuple[str, str]
) -> None:
    assert reasons(pool_refused(**fields)) == [where]


@pytest.mark.parametrize(
    ("toleration", "passes"),
    [
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "team", "value": "a"}, True),
        ({"key": "team", "value": "b"}, False),
        ({"key": "team", "value": "a", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_is_tolerated_as_the_api_server_has_it(
    toleration: dict[str, Any], passes: bool
) -> None:
    pool = read_pool({"name": "p", "tolerations": [toleration]})
    assert tolerates(tolerations_of(pool, None), "team", "a", "NoSchedule") is passes


def test_who_asks_for_gpus_tolerates_their_taint_unless_the_pool_says_no() -> None:
    def keys(gpu: Any, **fields: Any) -> list[str]:
        pool = read_pool({"name": "p", **fields})
        return [one.key for one in tolerations_of(pool, Resource(gpu=gpu))]

    assert (keys(1), keys("0"), keys(None)) == (["nvidia.com/gpu"], [], [])
    assert keys(1, gpu_toleration=False) == []
    same = {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert keys(1, tolerations=[same]) == ["nvidia.com/gpu"]
