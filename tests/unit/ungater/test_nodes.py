"""Which node a label value means, and the affinity that names it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate_ungater.state_machine.node_names import (
    NodeHostname,
    NodesByHostname,
    decode_node,
    node_name_affinity,
)
from tests.unit.ungater.test_rows import row

HOST = names.HOSTNAME_LABEL
NODE = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
ARM = {"key": "arch", "operator": "In", "values": ["arm64"]}


def node(name: str, hostname: str) -> NodeHostname:
    return NodeHostname(name, f"{name}-uid", "1", hostname)


def known(*rows: NodeHostname) -> NodesByHostname:
    nodes = NodesByHostname()
    for one in rows:
        nodes.upsert(None, one)
    return nodes


def test_a_node_is_read_from_its_metadata() -> None:
    found = decode_node(
        b'{"metadata":{"name":"n1","uid":"u","resourceVersion":"7",'
        b'"labels":{"kubernetes.io/hostname":"hostname-a","x":"y"}}}'
    )
    assert found == NodeHostname("n1", "u", "7", "hostname-a")
    assert decode_node(b'{"metadata":{"name":"n1"}}').hostname == ""


@pytest.mark.requirement("UNG-08")
def test_only_a_domain_that_ends_in_one_known_host_has_a_node() -> None:
    nodes = known(node("n1", "a"), node("n2", "b"), node("n3", "b"), node("n4", ""))
    assert nodes.only_node_of(("rack", HOST), ("r", "a")) == "n1"
    assert nodes.only_node_of((HOST,), ("b",)) == "", "two nodes carry the label"
    assert nodes.only_node_of((HOST,), ("c",)) == ""
    assert nodes.only_node_of((HOST,), ("",)) == "", "no label is no hostname"
    assert nodes.only_node_of(("rack",), ("a",)) == "", "a rack may be named like a hostname"
    assert nodes.only_node_of((), ()) == ""


def test_the_last_of_several_nodes_of_a_host_is_certain_again() -> None:
    nodes = known(node("n1", "a"), node("n2", "a"))
    nodes.delete(node("n1", "a"))
    assert nodes.only_node_of((HOST,), ("a",)) == "n2"
    nodes.upsert(node("n2", "a"), node("n2", "b"))
    assert nodes.only_node_of((HOST,), ("a",)) == ""
    assert nodes.only_node_of((HOST,), ("b",)) == "n2"
    nodes.delete(node("n2", "b"))
    nodes.delete(node("n2", "b"))
    assert nodes.only_node_of((HOST,), ("b",)) == ""


def test_terms_are_kept_only_while_the_pod_is_gated_and_shared_by_its_siblings() -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [ARM]}]
            }
        }
    }
    gated = row(spec__affinity=affinity)
    assert msgspec.json.decode(gated.terms) == [{"matchExpressions": [ARM]}]
    assert row(spec__affinity=affinity).terms is gated.terms
    assert row(spec__affinity=affinity, spec__schedulingGates=[]).terms == ""
    none: list[dict[str, Any] | None] = [{}, {"nodeAffinity": {}}, {"podAffinity": {}}, None]
    for less in none:
        assert row(spec__affinity=less).terms == ""


@pytest.mark.requirement("UNG-08")
def test_each_alternative_of_the_pod_names_the_node_and_says_what_it_said() -> None:
    own = [
        {"matchExpressions": [ARM], "matchFields": [{**NODE, "values": ["n9"]}]},
        {"matchExpressions": [ARM]},
        {},
    ]
    required = node_name_affinity("n1", msgspec.json.encode(own).decode())["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [ARM], "matchFields": [{**NODE, "values": ["n9"]}, NODE]},
        {"matchExpressions": [ARM], "matchFields": [NODE]},
        {},
    ]
