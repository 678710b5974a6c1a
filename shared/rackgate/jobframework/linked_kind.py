"""The interface of one kind of object whose pods are linked to a Workload of gangs: `LinkedKind`.

Rackgate does not suspend such an object. If it has a queue label, the webhook writes the name of a
Workload of gangs into its pod templates, and the assigner makes that Workload. Its pods are
therefore created gated, and quota is taken for them as they come.

A kind is one folder next to this file, with one subclass and one line in `registry`. A subclass
makes no decisions: it says where its templates are, and which of its pods start together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rackgate.api.names import GANG_LINK_ANNOTATION, QUEUE_LABEL
from rackgate.api.resources import Resource
from rackgate.jobframework.jsonpatch import JsonPatchOp, map_patch, pointer
from rackgate.jobframework.templates import int_or_default, section

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LinkedGang:
    """Which pods of an object start together, unless its user says otherwise.

    Attributes:
        size: pods of one gang.
        gangs: how many gangs of this size the object has.
        alone: why there is no gang, and each pod starts on its own; "" if there is one.
    """

    size: int = 0
    gangs: int = 1
    alone: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it would have gangs if it had pods."""
        return not self.alone and not self.size * self.gangs


@dataclass(frozen=True, slots=True)
class LinkHolder:
    """A place in a manifest whose labels and annotations its pods get.

    Attributes:
        parts: its path, such as `("spec", "template", "metadata")`.
        entries: the object at that path; empty if there is none.
        pod_template: the pod template that it is part of; None if there is none in the manifest.
    """

    parts: tuple[str, ...]
    entries: Mapping[str, Any]
    pod_template: Mapping[str, Any] | None

    @property
    def path(self) -> str:
        """As in messages."""
        return ".".join(self.parts)

    @property
    def link(self) -> str:
        """The Workload of gangs that it names; "" if it names none."""
        return str(section(self.entries, "annotations", self.path).get(GANG_LINK_ANNOTATION) or "")


class LinkedKind(ABC):
    """One kind of object.

    Attributes:
        resource: of its objects.
        built_in: whether every cluster serves it.
        replica_key: the label whose value tells its gangs apart; "" if it has one gang.
        rank_path: where its pods have their rank.
        takes_queue: whether its pods get the queue label, too. Otherwise the Workload of gangs
            alone says the queue.
    """

    resource: ClassVar[Resource]
    built_in: ClassVar[bool] = False
    replica_key: ClassVar[str] = ""
    rank_path: ClassVar[str]
    takes_queue: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The kind's name in the API."""
        return self.resource.kind

    @abstractmethod
    def template_parts(self, manifest: Manifest) -> Iterator[tuple[str, ...]]:
        """Paths of the pod templates that may be in a manifest.

        Raises:
            MalformedError: the manifest has a shape that the API server never sends.
        """

    @abstractmethod
    def gang(self, manifest: Manifest) -> LinkedGang:
        """Which of its pods start together.

        Raises:
            MalformedError: the manifest has a shape that the API server never sends.
        """

    @abstractmethod
    def has_pods(self, manifest: Manifest) -> bool:
        """Whether it has pods now, according to its status.

        Raises:
            MalformedError: the manifest has a shape that the API server never sends.
        """

    def holders(self, manifest: Manifest) -> list[LinkHolder]:
        """The places that get the link, one for each pod template of the manifest.

        Raises:
            MalformedError: the manifest has a shape that the API server never sends.
        """
        found = []
        for parts in self.template_parts(manifest):
            template = at(manifest, parts)
            if template is not None:
                entries = section(template, "metadata", ".".join(parts))
                found.append(LinkHolder((*parts, "metadata"), entries, template))
        return found


def at(manifest: Manifest, parts: tuple[str, ...]) -> Mapping[str, Any] | None:
    """The object at a path; None if there is none.

    Raises:
        MalformedError: something on the path is not an object.
    """
    found: Mapping[str, Any] = manifest
    for index, part in enumerate(parts):
        if found.get(part) is None:
            return None
        found = section(found, part, ".".join(parts[:index]))
    return found


def count_at(manifest: Manifest, *parts: str, default: int = 0) -> int:
    """A whole number at a path, never negative; `default` where there is none."""
    holder = at(manifest, parts[:-1])
    return max(0, int_or_default((holder or {}).get(parts[-1]), default))


def link_ops(holder: LinkHolder, link: str, queue: str | None = None) -> list[JsonPatchOp]:
    """Operations after which a place has this link, and this queue label unless it is None."""
    wanted = {"annotations": {GANG_LINK_ANNOTATION: link}}
    if queue is not None:
        wanted["labels"] = {QUEUE_LABEL: queue}
    if not holder.entries:
        return [{"op": "add", "path": pointer(*holder.parts), "value": wanted}]
    operations: list[JsonPatchOp] = []
    for field, entries in wanted.items():
        whole = {**section(holder.entries, field, holder.path), **entries}
        operations += map_patch(pointer(*holder.parts), field, holder.entries, whole)
    return operations
