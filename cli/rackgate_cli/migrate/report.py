"""What `rackgate migrate check` prints: `migrate.rackgate.dev/v1`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from rackgate.kueue_gates import KUEUE_VERSION

API_VERSION: Final = "migrate.rackgate.dev/v1"
KIND: Final = "MigrationCheck"


class Result(StrEnum):
    """How something of Kueue works with Rackgate, from best to worst."""

    SAME = "same"
    BETTER = "better"
    DIFFERS = "differs"
    NOT_YET = "not yet"


_WORST_FIRST: Final = (Result.NOT_YET, Result.DIFFERS, Result.BETTER, Result.SAME)


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """Something in an object, or a setting, that does not work exactly as in Kueue.

    Attributes:
        path: in the object; "" for the object itself.
        result: how it works.
        outcome: the word of docs/reference/compatibility.md; "" if the page has none for it.
        why: the difference, or what happens instead.
        to_do: what to do about it; "" for nothing.
        blocks: jobs would wait forever or run without quota, or the object would be rejected.
        component: of the installation that it needs, such as `deploy/pods`; "" for none.
        gate: feature gate of Rackgate that it needs; "" for none.
    """

    path: str
    result: Result
    outcome: str
    why: str
    to_do: str = ""
    blocks: bool = False
    component: str = ""
    gate: str = ""


class Item(msgspec.Struct, frozen=True, rename="camel"):
    """One object of the cluster or of a file, or one key of Kueue's configuration.

    Attributes:
        kind: of the object; `Configuration` for a key.
        name: of the object, or the path of the key.
        namespace: of the object, "" if it has none.
        result: the worst of its findings; `same` without any.
        blocks: one of the findings does.
        findings: in the order of the object.
    """

    kind: str
    name: str
    namespace: str
    result: Result
    blocks: bool
    findings: tuple[Finding, ...] = ()


class Summary(msgspec.Struct, frozen=True, rename="camel"):
    """Numbers of items by result, and of those that block."""

    same: int
    better: int
    differs: int
    not_yet: int
    blocking: int


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """The whole answer.

    Attributes:
        api_version: changes when a field changes its meaning.
        kind: `MigrationCheck`.
        kueue_version: the version of Kueue that Rackgate is compared with.
        source: `cluster` or `files`.
        summary: numbers of items.
        notes: what could not be read.
        items: in the order of reading.
    """

    api_version: str
    kind: str
    kueue_version: str
    source: str
    summary: Summary
    notes: tuple[str, ...]
    items: tuple[Item, ...]


def item_of(kind: str, name: str, namespace: str, findings: Sequence[Finding]) -> Item:
    """An item with the worst result of its findings."""
    found = {one.result for one in findings}
    result = next((one for one in _WORST_FIRST if one in found), Result.SAME)
    blocks = any(one.blocks for one in findings)
    return Item(kind, name, namespace, result, blocks, tuple(findings))


def report_of(items: Iterable[Item], source: str, notes: Iterable[str]) -> Report:
    """The report of these items."""
    listed = tuple(items)
    counts = Counter(one.result for one in listed)
    summary = Summary(
        same=counts[Result.SAME],
        better=counts[Result.BETTER],
        differs=counts[Result.DIFFERS],
        not_yet=counts[Result.NOT_YET],
        blocking=sum(one.blocks for one in listed),
    )
    return Report(API_VERSION, KIND, KUEUE_VERSION, source, summary, tuple(notes), listed)


def schema() -> dict[str, Any]:
    """The JSON schema of a report."""
    return msgspec.json.schema(Report)
