"""Any object that the CRDs allow comes back the same from the other version.

The objects are drawn from the schemas themselves, so a field that is added is drawn as well.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rackgate.api.conversion import OLD_API_VERSION, ConversionError, convert, domains_bytes
from rackgate.api.crd import CRD_KINDS, crd_document
from rackgate.api.names import API_VERSION, GROUP
from rackgate.topology.assignment import AssignmentError, TopologyAssignment, decode, encode

Object = dict[str, Any]
SCHEMAS: dict[tuple[str, str], Object] = {
    (kind.model.__name__, f"{GROUP}/{version['name']}"): version["schema"]["openAPIV3Schema"]
    for kind in CRD_KINDS
    for version in crd_document(kind)["spec"]["versions"]
}
KINDS = sorted({kind for kind, _ in SCHEMAS})
WORDS = st.sampled_from(("", "a", "b", "b1", "b1-r1", "gpu", "é"))


@st.composite
def assignments(draw: DrawFn, *, old: bool) -> Object:
    width = draw(st.integers(1, 3))
    levels = [f"level-{i}" for i in range(width)]
    values = st.tuples(*[st.sampled_from(("b1", "b2", "b1-n1", "b1-n22", "é"))] * width)
    found = draw(st.lists(values, min_size=1, max_size=6, unique=True))
    counts = draw(st.lists(st.integers(1, 9), min_size=len(found), max_size=len(found)))
    rows = tuple(zip(found, counts, strict=True))
    if old:
        domains = [{"values": list(row), "count": count} for row, count in rows]
        return {"levels": levels, "domains": domains}
    canonical = encode(TopologyAssignment(tuple(levels), rows))
    # Another encoder cuts elsewhere; and some assignments are not valid.
    single = [encode(TopologyAssignment(tuple(levels), (row,)))["slices"][0] for row in rows]
    twice = [*canonical["slices"], *canonical["slices"]]
    slices = draw(st.sampled_from((canonical["slices"], single, twice, [])))
    return {"levels": levels, "slices": slices}


def drawn(schema: Object, name: str, *, old: bool) -> SearchStrategy[Any]:
    """Values with the shape of a schema; its patterns and rules do not matter here."""
    if name == "topologyAssignment":
        return assignments(old=old)
    if name == "priorityClassRef":
        pairs = [(GROUP, "WorkloadPriorityClass"), ("scheduling.k8s.io", "PriorityClass")]
        refs = [{"group": g, "kind": kind, "name": "low"} for g, kind in pairs]
        return st.sampled_from(refs)  # a rule of the CRD rejects other pairs
    if name == "template":
        leaf = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), WORDS)
        return st.dictionaries(WORDS, st.lists(leaf, max_size=2), max_size=3)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.one_of(st.integers(0, 99), st.just("1.5Gi"))
    if "properties" in schema:
        return objects(schema, old=old)
    if "additionalProperties" in schema:
        return st.dictionaries(
            WORDS, drawn(schema["additionalProperties"], "", old=old), max_size=2
        )
    if schema["type"] == "array":
        least = schema.get("minItems", 0)
        items = drawn(schema["items"], "", old=old)
        return st.lists(items, min_size=least, max_size=max(2, least))
    return {
        "string": WORDS,
        "integer": st.integers(0, 9),
        "boolean": st.booleans(),
        "object": st.just({}),
    }[schema["type"]]


def objects(schema: Object, *, old: bool) -> SearchStrategy[Object]:
    fields = {name: drawn(child, name, old=old) for name, child in schema["properties"].items()}
    needed = {name: fields.pop(name) for name in schema.get("required", ()) if name in fields}
    return st.fixed_dictionaries(needed, optional=fields)


METADATA = st.fixed_dictionaries({"name": WORDS}, optional={"annotations": st.just({"a": "b"})})


@st.composite
def stored(draw: DrawFn, version: str) -> Object:
    kind = draw(st.sampled_from(KINDS))
    schema = SCHEMAS[kind, version]
    inner = {
        name: child
        for name, child in schema["properties"].items()
        if name not in ("apiVersion", "kind", "metadata")
    }
    found = draw(objects({**schema, "properties": inner}, old=version == OLD_API_VERSION))
    return {**found, "apiVersion": version, "kind": kind, "metadata": draw(METADATA)}


def pruned(value: Any, schema: Object, path: str = "") -> list[str]:
    """Paths of what the API server would take away."""
    if schema.get("x-kubernetes-preserve-unknown-fields") or path == "metadata":
        return []
    if isinstance(value, list):
        return [p for item in value for p in pruned(item, schema["items"], f"{path}[]")]
    if not isinstance(value, dict):
        return []
    known, more = schema.get("properties", {}), schema.get("additionalProperties")
    lost = []
    for key, child in value.items():
        own = f"{path}.{key}" if path else key
        if key in known:
            lost += pruned(child, known[key], own)
        elif isinstance(more, dict):
            lost += pruned(child, more, own)
        elif key != "metadata":
            lost.append(own)
    return lost


def with_domains(value: Any) -> Any:
    """The same, with decoded assignments: another encoder cuts into other slices."""
    if isinstance(value, list):
        return [with_domains(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: with_domains(child) for key, child in value.items()}
    if isinstance(value.get("topologyAssignment"), dict):
        try:
            found["topologyAssignment"] = decode(value["topologyAssignment"])
        except AssignmentError:
            found["topologyAssignment"] = value["topologyAssignment"]
    return found


# Bytes that the names of other fields may take more.
NAMES = 100


def without_version(given_: Object) -> int:
    return len(msgspec.json.encode({**given_, "apiVersion": ""}))


@pytest.mark.requirement("OPS-04")
@given(stored(API_VERSION))
def test_what_is_stored_comes_back_the_same_from_the_older_version(given_: Object) -> None:
    before = copy.deepcopy(given_)
    old = convert(given_, OLD_API_VERSION)
    assert given_ == before
    assert pruned(old, SCHEMAS[given_["kind"], OLD_API_VERSION]) == []
    assert old["metadata"] == given_["metadata"]
    expansion = domains_bytes(given_, OLD_API_VERSION)
    assert without_version(old) <= without_version(given_) + expansion + NAMES
    assert with_domains(convert(old, API_VERSION)) == with_domains(given_)


def read_back(written: Object) -> Object:
    """Spellings of v1beta1 that come back in another one, as ADR 67 lists them."""
    found = copy.deepcopy(written)
    spec = found.get("spec") or {}
    if found["kind"] == "ClusterQueue":
        fungibility = spec.get("flavorFungibility") or {}
        for field in ("whenCanBorrow", "whenCanPreempt"):
            if fungibility.get(field) in ("Borrow", "Preempt"):
                fungibility[field] = "MayStopSearch"
        if spec.get("admissionChecks"):
            spec.pop("admissionChecksStrategy", None)  # both together are rejected
        else:
            spec.pop("admissionChecks", None)
        rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or []
        if all(set(rule) == {"name", "onFlavors"} and not rule["onFlavors"] for rule in rules):
            for rule in rules:
                del rule["onFlavors"]
    if found["kind"] == "Workload":
        if not spec.get("priorityClassName"):
            spec.pop("priorityClassName", None)
            spec.pop("priorityClassSource", None)
        elif not spec.get("priorityClassSource"):
            spec["priorityClassSource"] = "scheduling.k8s.io/priorityclass"
    return found


@pytest.mark.requirement("OPS-04")
@given(stored(OLD_API_VERSION))
def test_what_is_written_in_the_older_version_is_read_in_it(written: Object) -> None:
    """But for `slices`, which only assignments have that are not valid, and a few spellings."""
    for of_podset in ((written.get("status") or {}).get("admission") or {}).get(
        "podSetAssignments", ()
    ):
        of_podset.get("topologyAssignment", {}).pop("slices", None)
    new = convert(written, API_VERSION)
    assert pruned(new, SCHEMAS[written["kind"], API_VERSION]) == []
    assert new["metadata"] == written["metadata"]
    assert convert(new, OLD_API_VERSION) == read_back(written)
    assert convert(convert(new, OLD_API_VERSION), API_VERSION) == new


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), WORDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                (
                    "spec",
                    "status",
                    "admission",
                    "podSetAssignments",
                    "topologyAssignment",
                    "levels",
                    "domains",
                    "slices",
                    "values",
                    "count",
                    "cohort",
                    "admissionChecks",
                    "admissionChecksStrategy",
                    "flavorFungibility",
                    "priorityClassName",
                    "priorityClassSource",
                    "priorityClassRef",
                    "domainCount",
                    "valuesPerLevel",
                )
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=25,
)


@pytest.mark.requirement("OPS-04")
@given(
    st.sampled_from(KINDS),
    st.sampled_from((API_VERSION, OLD_API_VERSION)),
    st.dictionaries(st.sampled_from(("spec", "status")), JSON, max_size=2),
)
def test_no_shape_ends_it_but_with_an_error_that_names_a_field(
    kind: str, version: str, fields: Object
) -> None:
    other = OLD_API_VERSION if version == API_VERSION else API_VERSION
    said = ""
    try:
        msgspec.json.encode(convert({"apiVersion": version, "kind": kind, **fields}, other))
    except ConversionError as error:
        said = str(error)
    assert said.startswith(("spec", "status")) or not said
