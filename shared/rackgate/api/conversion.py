"""Convert objects of Kueue's kinds between v1beta1 and v1beta2.

A field that both versions have, and a field that only v1beta2 has, has the same name and value in
both: the schemas of v1beta1 in `deploy/crds` have the fields of v1beta2, too. Only these differ:

| kind | v1beta1 | v1beta2 |
|---|---|---|
| ClusterQueue | `spec.cohort` | `spec.cohortName` |
| | `spec.admissionChecks: [a]` | `spec.admissionChecksStrategy`, each rule with `onFlavors: []` |
| | `Borrow`, `Preempt` in `spec.flavorFungibility` | `MayStopSearch` |
| LocalQueue | `status.flavorUsage` | `status.flavorsUsage` |
| Workload | `spec.priorityClassName`, `spec.priorityClassSource` | `spec.priorityClassRef` |
| | `status.accumulatedPastExexcutionTimeSeconds` | `status.accumulatedPastExecutionTimeSeconds` |
| | `domains` of a `topologyAssignment` | `slices` |

An object of v1beta2 is the same after v1beta1 and back; ADR 67 lists the few spellings of v1beta1
that come back in another one. No object that the API server can have stored fails: one failure
would fail the whole list that it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rackgate.api.names import API_VERSION, GROUP, OLD_VERSION
from rackgate.topology.assignment import MAX_PODS, AssignmentError, decode, encode_unchecked, shown

Object = dict[str, Any]

OLD_API_VERSION: Final = f"{GROUP}/{OLD_VERSION}"
KUEUE_VERSIONS: Final = (API_VERSION, OLD_API_VERSION)
POD_PRIORITY: Final = "scheduling.k8s.io/priorityclass"
WORKLOAD_PRIORITY: Final = "kueue.x-k8s.io/workloadpriorityclass"
# Bytes of JSON that the domains of one object may take. 100,000 nodes take 6 MiB.
MAX_DOMAINS_BYTES: Final = 8 * 2**20

_PRIORITY_REFS: Final = {
    WORKLOAD_PRIORITY: (GROUP, "WorkloadPriorityClass"),
    POD_PRIORITY: ("scheduling.k8s.io", "PriorityClass"),
}
_PRIORITY_SOURCES: Final = {ref: source for source, ref in _PRIORITY_REFS.items()}
_OLD_TIME: Final = "accumulatedPastExexcutionTimeSeconds"  # so in Kueue
_TIME: Final = "accumulatedPastExecutionTimeSeconds"


class ConversionError(ValueError):
    """The object cannot be converted; the message starts with a field path."""


def convert(
    obj: Mapping[str, Any], api_version: str, max_domains_bytes: int = MAX_DOMAINS_BYTES
) -> Object:
    """The object in the other version, or the same if it has that version.

    Metadata is never changed. The given object is not changed; the result shares parts with it.

    Args:
        obj: as decoded from JSON.
        api_version: `kueue.x-k8s.io/v1beta1` or `kueue.x-k8s.io/v1beta2`.
        max_domains_bytes: a Workload whose `domains_bytes` are more keeps its slices.

    Raises:
        ConversionError: an unknown kind or version, or a field with a wrong type.
    """
    found = dict(obj)
    if found.get("apiVersion") == api_version:
        return found
    if found.get("apiVersion") not in KUEUE_VERSIONS:
        raise ConversionError(f"apiVersion: {shown(found.get('apiVersion'))}: {_KNOWN_VERSIONS}")
    if api_version not in KUEUE_VERSIONS:
        raise ConversionError(f"desiredAPIVersion: {shown(api_version)}: {_KNOWN_VERSIONS}")
    kind = found.get("kind")
    if not isinstance(kind, str) or kind not in _CONVERSIONS:
        known = ", ".join(_CONVERSIONS)
        raise ConversionError(f"kind: {shown(kind)}: must be one of {known}")
    to_new, to_old = _CONVERSIONS[kind]
    (to_new if api_version == API_VERSION else to_old)(found)
    if domains_bytes(obj, api_version) <= max_domains_bytes:
        for assignment in _expandable(found, api_version):
            domains = _domains(assignment)
            if domains is not None:
                assignment["domains"] = domains
                del assignment["slices"]
    return {**found, "apiVersion": api_version}


def domains_bytes(obj: Mapping[str, Any], api_version: str) -> int:
    """At most by so many bytes of JSON is the object larger in the other version; 0 if it is not.

    A few bytes of slices can stand for many of domains.

    Raises:
        ConversionError: a field with a wrong type.
    """
    return sum(map(_expansion, _expandable(dict(obj), api_version)))


def _expandable(obj: Object, api_version: str) -> list[Object]:
    """A copy of each topology assignment with slices that become domains, in its place."""
    if (obj.get("kind"), obj.get("apiVersion"), api_version) != _EXPANDED:
        return []
    assignments = _assignments(_section(obj, "status"))
    return [assignment for assignment, _path in assignments if "slices" in assignment]


_EXPANDED: Final = ("Workload", API_VERSION, OLD_API_VERSION)
_KNOWN_VERSIONS: Final = f"must be {' or '.join(KUEUE_VERSIONS)}"
Change = Callable[[Object], None]  # changes the top level of a copy


def _keep(_obj: Object) -> None:
    """The same shape in both versions."""


def _cluster_queue_to_new(obj: Object) -> None:
    spec = _section(obj, "spec")
    _rename(spec, "cohort", "cohortName")
    names = _items(spec, "spec", "admissionChecks")
    strategy = _section(spec, "admissionChecksStrategy", "spec.")
    if names:
        spec["admissionChecksStrategy"] = {
            **strategy,
            "admissionChecks": [{"name": name, "onFlavors": []} for name in names],
        }
    elif _is_list_of_names(strategy):
        # So it comes back as a strategy.
        strategy["admissionChecks"] = [{"name": it["name"]} for it in strategy["admissionChecks"]]
    spec.pop("admissionChecks", None)
    fungibility = _section(spec, "flavorFungibility", "spec.")
    for field, old in (("whenCanBorrow", "Borrow"), ("whenCanPreempt", "Preempt")):
        if fungibility.get(field) == old:
            fungibility[field] = "MayStopSearch"


def _cluster_queue_to_old(obj: Object) -> None:
    spec = _section(obj, "spec")
    _rename(spec, "cohortName", "cohort")
    strategy = _section(spec, "admissionChecksStrategy", "spec.")
    if _is_list_of_names(strategy):
        spec["admissionChecks"] = [rule["name"] for rule in strategy["admissionChecks"]]
        del spec["admissionChecksStrategy"]


def _is_list_of_names(strategy: Mapping[str, Any]) -> bool:
    """Whether the strategy is what `admissionChecks` of v1beta1 becomes."""
    found = strategy.get("admissionChecks")
    return (
        len(strategy) == 1
        and isinstance(found, list)
        and bool(found)
        and all(
            isinstance(rule, dict)
            and set(rule) == {"name", "onFlavors"}
            and rule["onFlavors"] == []
            for rule in found
        )
    )


def _local_queue_to_new(obj: Object) -> None:
    _rename(_section(obj, "status"), "flavorUsage", "flavorsUsage")


def _local_queue_to_old(obj: Object) -> None:
    _rename(_section(obj, "status"), "flavorsUsage", "flavorUsage")


def _workload_to_new(obj: Object) -> None:
    spec = _section(obj, "spec")
    name, source = spec.pop("priorityClassName", None), spec.pop("priorityClassSource", None)
    if name:
        # Kueue documents a name without a source as that of a PriorityClass.
        group_kind = _PRIORITY_REFS.get(source or POD_PRIORITY) if _is_text(source) else None
        if group_kind is None:
            known = " or ".join(_PRIORITY_REFS)
            raise ConversionError(f"spec.priorityClassSource: {shown(source)}: must be {known}")
        spec["priorityClassRef"] = {"group": group_kind[0], "kind": group_kind[1], "name": name}
    status = _section(obj, "status")
    _rename(status, _OLD_TIME, _TIME)
    for assignment, path in _assignments(status):
        if "domains" in assignment:
            assignment.update(_slices(assignment, path))
            del assignment["domains"]


def _workload_to_old(obj: Object) -> None:
    spec = _section(obj, "spec")
    ref = spec.get("priorityClassRef")
    if isinstance(ref, dict):
        source = _PRIORITY_SOURCES.get((str(ref.get("group")), str(ref.get("kind"))))
        if source is not None and ref.get("name") and len(ref) == 3:
            del spec["priorityClassRef"]
            spec |= {"priorityClassName": ref["name"], "priorityClassSource": source}
    _rename(_section(obj, "status"), _TIME, _OLD_TIME)


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _assignments(status: Object) -> list[tuple[Object, str]]:
    """A copy of each topology assignment, in place of its original, and its path."""
    found: list[tuple[Object, str]] = []
    if not isinstance(status.get("admission"), dict):
        return found
    admission = _section(status, "admission", "status.")
    of_podsets = _items(admission, "status.admission", "podSetAssignments")
    path = "status.admission.podSetAssignments"
    copies = list(of_podsets)
    for index, of_podset in enumerate(of_podsets):
        if not isinstance(of_podset, dict):
            raise ConversionError(f"{path}[{index}]: {shown(of_podset)}: must be an object")
        if of_podset.get("topologyAssignment") is not None:
            copies[index] = dict(of_podset)
            own = f"{path}[{index}]."
            assignment = _section(copies[index], "topologyAssignment", own)
            found.append((assignment, f"{own}topologyAssignment"))
    if found:
        admission["podSetAssignments"] = copies
    return found


def _slices(assignment: Mapping[str, Any], path: str) -> Object:
    """`levels` and `slices` of v1beta2."""
    levels = _items(assignment, path, "levels")
    rows = _items(assignment, path, "domains")
    if "slices" in assignment:
        raise ConversionError(f"{path}: domains and slices cannot be used together")
    if not levels or not all(type(level) is str for level in levels):
        raise ConversionError(f"{path}.levels: {shown(levels)}: must be a list of label keys")
    domains = [_row(row, len(levels), f"{path}.domains[{i}]") for i, row in enumerate(rows)]
    return encode_unchecked(levels, domains) if domains else {"levels": levels, "slices": []}


def _row(row: object, width: int, path: str) -> tuple[Sequence[str], int]:
    if not isinstance(row, dict):
        raise ConversionError(f"{path}: {shown(row)}: must be an object")
    values, count = row.get("values"), row.get("count")
    if not isinstance(values, list) or not all(type(value) is str for value in values):
        raise ConversionError(f"{path}.values: {shown(values)}: must be a list of strings")
    if len(values) != width:
        problem = f"{len(values)} values: must be one for each of the {width} levels"
        raise ConversionError(f"{path}.values: {problem}")
    if type(count) is not int:
        raise ConversionError(f"{path}.count: {shown(count)}: must be a whole number")
    return values, count


def _domains(assignment: Mapping[str, Any]) -> list[Object] | None:
    """`domains` of v1beta1; None for an assignment that is not valid, which keeps its slices."""
    if assignment.get("slices") == []:
        return []
    try:
        found = decode(assignment)
    except AssignmentError:
        return None
    return [{"values": list(values), "count": count} for values, count in found.domains]


def _expansion(assignment: Mapping[str, Any]) -> int:
    """Bytes that `domains` have more than `slices`, at most.

    Roots take the same in both.
    """
    total = 0
    slices = assignment.get("slices")
    for part in slices if isinstance(slices, list) else ():
        if not isinstance(part, dict) or type(part.get("domainCount")) is not int:
            continue
        columns = part.get("valuesPerLevel")
        row = len(f'{{"values":[],"count":{MAX_PODS}}},')
        for column in columns if isinstance(columns, list) else ():
            if isinstance(column, dict):
                individual = column.get("individual")
                ends = individual if isinstance(individual, dict) else {}
                texts = (column.get("universal"), ends.get("prefix"), ends.get("suffix"))
                row += len('"",')
                row += sum(len(msgspec.json.encode(it)) - 2 for it in texts if _is_text(it) and it)
        # A negative count must not hide what the other slices take.
        total += max(0, part["domainCount"]) * row
    return total


def _section(parent: Object, name: str, path: str = "") -> Object:
    """A copy of an object field, in place of its original; a new empty one if it is absent."""
    found = parent.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConversionError(f"{path}{name}: {shown(found)}: must be an object")
    copied = dict(found)
    parent[name] = copied
    return copied


def _items(parent: Mapping[str, Any], path: str, name: str) -> list[Any]:
    found = parent.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise ConversionError(f"{path}.{name}: {shown(found)}: must be a list")
    return found


def _rename(section: Object, before: str, after: str) -> None:
    if before in section:
        section[after] = section.pop(before)


_CONVERSIONS: Final[dict[str, tuple[Change, Change]]] = {
    "AdmissionCheck": (_keep, _keep),
    "ClusterQueue": (_cluster_queue_to_new, _cluster_queue_to_old),
    "Cohort": (_keep, _keep),
    "LocalQueue": (_local_queue_to_new, _local_queue_to_old),
    "ResourceFlavor": (_keep, _keep),
    "Topology": (_keep, _keep),
    "Workload": (_workload_to_new, _workload_to_old),
    "WorkloadPriorityClass": (_keep, _keep),
}
