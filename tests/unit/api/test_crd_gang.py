"""The definition of the Workload of gangs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rackgate.api.crd import (
    CRD_KINDS,
    GANG_CRD_KINDS,
    crd_documents,
    crd_text,
    gang_crd_documents,
    kind_schema,
    main,
    osmo_crd_documents,
)
from rackgate.api.gang import Workload
from rackgate.api.names import GANG_GROUP
from rackgate.api.resources import GANG_WORKLOADS
from tests.unit.api.test_crd import KEYWORDS, nodes

CRDS = Path(__file__).parents[3] / "deploy" / "gangs" / "crds"
STALE = "run: python -m rackgate.api.crd deploy/gangs/crds gangs"
SCHEMA = dict(nodes(kind_schema(Workload)))
(DOCUMENT,) = gang_crd_documents().values()


def test_the_files_are_as_generated_and_no_others_are_there() -> None:
    found = {path.name: path.read_text() for path in CRDS.iterdir()}
    listed = yaml.safe_load(found.pop("kustomization.yaml"))["resources"]
    assert sorted(listed) == sorted(found)
    assert found == {name: crd_text(entry) for name, entry in gang_crd_documents().items()}, STALE
    assert not set(found) & {*crd_documents(), *osmo_crd_documents()}


def test_the_word_gangs_writes_it(tmp_path: Path) -> None:
    assert main([str(tmp_path), "gangs"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(gang_crd_documents())


def test_the_schema_has_only_what_the_api_server_takes() -> None:
    for path, node in SCHEMA.items():
        assert set(node) <= KEYWORDS, path
        if not node.get("x-kubernetes-int-or-string"):
            assert isinstance(node.get("type"), str), path
        if node.get("type") == "array":
            assert node["x-kubernetes-list-type"] in ("atomic", "map", "set"), path
            assert "maxItems" in node, path


@pytest.mark.requirement("GNG-01")
def test_no_name_of_it_is_one_of_kueues() -> None:
    names = DOCUMENT["spec"]["names"]
    assert (names["kind"], names["plural"]) == (GANG_WORKLOADS.kind, GANG_WORKLOADS.plural)
    assert (names["singular"], names["shortNames"]) == ("schedworkload", ["swl"])
    assert DOCUMENT["spec"]["group"] == GANG_GROUP
    kueues = {
        name
        for kind in CRD_KINDS
        for name in (kind.plural, kind.model.__name__.lower(), *kind.short_names)
    }
    assert not {names["plural"], names["singular"], *names["shortNames"]} & kueues


def test_the_columns_are_fields_of_the_status() -> None:
    (version,) = DOCUMENT["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    columns = {one["name"]: one["jsonPath"] for one in version["additionalPrinterColumns"]}
    assert list(columns) == ["Phase", "Pods", "Members", "Waiting for", "Age"]
    for path in list(columns.values())[:-1]:
        assert path in SCHEMA


@pytest.mark.requirement("GNG-32", "GNG-37", "GNG-40")
def test_each_level_has_its_own_fields_and_the_lists_of_the_next() -> None:
    def own(path: str) -> set[str]:
        return {
            name
            for name, node in SCHEMA[path]["properties"].items()
            if not node.get("description", "").startswith("Rejected here")
        }

    counts, place = {"minCount", "maxCount"}, {"topologyRequest"}
    group = {"name", "selector"} | place
    ranks = {"rankMode", "podRank", "eqGroups"}
    gang = {"gangMode", "scheduleTimeoutSeconds", "reschedulingPolicy"}
    lists = {"gangGroups", "rankedGroups", "eqGroups"}
    head = {"controllerRef", "replicaMode", "replicaKey", "topologySpread"}
    assert own(".spec") == head | counts | place | lists
    assert own(".spec.gangGroups[]") == group | counts | gang | ranks | {"rankedGroups"}
    ranked = own(".spec.gangGroups[].rankedGroups[]")
    assert ranked == own(".spec.rankedGroups[]") == group | counts | ranks
    equal = own(".spec.gangGroups[].rankedGroups[].eqGroups[]")
    assert equal == own(".spec.eqGroups[]") == own(".spec.gangGroups[].eqGroups[]")
    assert equal == group | counts | {"count", "template", "maxTemplate"}


def test_there_is_one_kind() -> None:
    assert [kind.model for kind in GANG_CRD_KINDS] == [Workload]


LISTS = ("gangGroups", "rankedGroups", "eqGroups")


@pytest.mark.requirement("GNG-42")
def test_levels_are_plain_nested_lists_and_no_unions() -> None:
    """No level has a field that says which other field counts."""
    spec = kind_schema(Workload)["properties"]["spec"]
    for depth, name in enumerate(LISTS):
        assert spec["properties"][name]["type"] == "array"
        spec = spec["properties"][name]["items"]
        fields = set(spec["properties"])
        assert not fields & {"type", "kind", "union", "discriminator", "shape", "group"}
        assert set(LISTS[: depth + 1]).isdisjoint(
            field for field in fields if spec["properties"][field].get("type") == "array"
        ), "a level contains later levels only"
    assert not [path for path, node in SCHEMA.items() if "oneOf" in node]


@pytest.mark.requirement("GNG-03")
def test_a_workload_of_gangs_contains_and_names_no_other() -> None:
    fields = {path.rpartition(".")[2].lower() for path in map(str, SCHEMA)}
    assert not {field for field in fields if "workload" in field or field in ("parent", "children")}
