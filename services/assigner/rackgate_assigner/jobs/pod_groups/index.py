"""Plain pods by group, as the watch shows them. Pure.

A group is assembled when it is read, and kept until one of its pods changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rackgate.jobframework.pod_group.pod_group import PodGroup, assemble
from rackgate.jobframework.pod_group.pods import GroupPod
from rackgate.jobframework.registry import PLAIN_POD, POD_GROUP


def key_of(pod: GroupPod) -> tuple[str, str]:
    """Kind and `namespace/name` of the group of a pod."""
    meta = pod.metadata
    if pod.group:
        return POD_GROUP.name, f"{meta.namespace}/{pod.group}"
    return PLAIN_POD.name, meta.key


class PodGroups(Mapping[str, PodGroup]):
    """Groups of one kind, by `namespace/name`."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, GroupPod]] = {}
        self._assembled: dict[str, PodGroup] = {}

    def __getitem__(self, key: str) -> PodGroup:
        found = self._assembled.get(key)
        if found is None:
            found = self._assembled[key] = assemble(list(self._pods[key].values()))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._pods)

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, key: object) -> bool:
        return key in self._pods

    def put(self, key: str, pod: GroupPod) -> bool:
        """Add or replace a pod; whether its group is new."""
        is_new = key not in self._pods
        self._pods.setdefault(key, {})[pod.metadata.name] = pod
        self._assembled.pop(key, None)
        return is_new

    def drop(self, key: str, pod: GroupPod) -> bool:
        """Remove a pod; whether its group has no other."""
        pods = self._pods.get(key, {})
        pods.pop(pod.metadata.name, None)
        self._assembled.pop(key, None)
        if not pods:
            self._pods.pop(key, None)
        return not pods
