"""A cluster that thousands of Jobs pass through, played in a process that keeps nothing of them."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter, defaultdict
from typing import Final

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.apiserver import Object, Request
from tests.support.apiserver_objects import Target
from tests.support.objects import RACK
from tests.wire.assigner_world import NAMESPACE, World

# Watches that begin anew find what they missed; nothing older is kept.
HISTORY: Final = 5_000


class _DiscardingList(list[Request]):
    """Takes requests, and keeps none."""

    def append(self, item: Request, /) -> None:
        del item


class SoakWorld(World):
    """Plays the API server, the Job controller, scheduler, kubelet and garbage collector.

    Attributes:
        counted: requests by method and resource.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests = _DiscardingList()
        self.counted: Counter[str] = Counter()
        self._signals: dict[tuple[str, str], asyncio.Event] = defaultdict(asyncio.Event)

    async def one(self, name: str, pods: int, cpu: str = "100m") -> None:
        """The life of one Job, from its creation to the deletion of all that was made for it.

        Args:
            name: of the Job.
            pods: how many.
            cpu: of each; a node has 8.
        """
        self.submit(name, pods, required=RACK, cpu=cpu)
        await self._signals[name, "started"].wait()
        made = [self._pod(name, number) for number in range(pods)]
        for pod in made:
            await self._signals[pod, "released"].wait()
            self._bind(pod)
        for pod in made:
            self._succeed(pod)
        self.complete(name)
        await self._signals[name, "let go"].wait()
        for pod in made:
            self.remove(kinds.PODS, pod, NAMESPACE)
            self._signals.pop((pod, "released"), None)
        self.delete(kinds.JOBS, name)
        for moment in ("started", "let go"):
            self._signals.pop((name, moment), None)

    def _pod(self, name: str, number: int) -> str:
        job = self.job(name)
        template = copy.deepcopy(job["spec"]["template"])
        meta = template.setdefault("metadata", {})
        meta.setdefault("labels", {})[names.COMPLETION_INDEX_LABEL] = str(number)
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        meta.update(name=f"{name}-{number}", namespace=NAMESPACE, ownerReferences=[owner])
        pod = {"metadata": meta, "spec": template["spec"], "status": {"phase": "Pending"}}
        self.put(kinds.PODS, pod)
        return f"{name}-{number}"

    def _bind(self, name: str) -> None:
        def edit(pod: Object) -> None:
            pod["spec"]["nodeName"] = pod["spec"]["nodeSelector"][names.HOSTNAME_LABEL]
            pod["status"] = {"phase": "Running"}

        self.change(kinds.PODS, name, edit)

    def _succeed(self, name: str) -> None:
        self.change(kinds.PODS, name, lambda pod: pod.update(status={"phase": "Succeeded"}))

    def _do(self, target: Target, seen: Request) -> tuple[int, Object]:
        self.counted[f"{seen.method} {target.plural}"] += 1
        if seen.method == "POST" and target.full_name == kinds.EVENTS.full_name:
            return 201, {}
        return super()._do(target, seen)

    def _store(self, target: Target, item: Object, known: Object | None) -> Object:
        stored = super()._store(target, item, known)
        meta = stored["metadata"]
        if target.full_name == kinds.JOBS.full_name and not stored["spec"].get("suspend"):
            self._signals[meta["name"], "started"].set()
        elif target.full_name == kinds.PODS.full_name:
            if not stored["spec"].get("schedulingGates"):
                self._signals[meta["name"], "released"].set()
        elif target.full_name == kinds.WORKLOADS.full_name and not meta.get("finalizers"):
            self._signals[meta["ownerReferences"][0]["name"], "let go"].set()
        return stored

    def _drop(self, full_name: str, key: str) -> None:
        super()._drop(full_name, key)
        if full_name == kinds.WORKLOADS.full_name:
            for owned in [owned for owned in self._applied if owned[1] == key]:
                del self._applied[owned]

    def _publish(self, kind: str, full_name: str, item: Object) -> None:
        super()._publish(kind, full_name, item)
        if len(self._history) > 2 * HISTORY:
            self._oldest = self._history[-HISTORY][0]
            del self._history[:-HISTORY]
