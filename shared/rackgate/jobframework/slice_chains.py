"""Workload slices that Kueue wrote: which Workload the pods of an elastic job belong to. Pure.

When an elastic job grows, Kueue writes a Workload for all its pods and finishes the one before it.
The templates of the running job cannot change, so its pods go on to name a Workload that is
Finished. All Workloads and pods of the job have the name of the first Workload in an annotation:
they are one chain. Its pods belong to its Workload that is admitted and not Finished.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Pod = TypeVar("Pod", bound=str)


class SliceChains(Generic[Pod]):
    """Workloads that are not Finished, and pods, by chain.

    Workloads and chains are `namespace/name`; the caller chooses how it names pods. Annotations are
    claims: as for other pods, the owner of a pod is compared with that of the Workload before
    anything follows from it.
    """

    def __init__(self) -> None:
        self._workloads: dict[str, dict[str, bool]] = {}  # of a chain: whether each is admitted
        self._chain_of_workload: dict[str, str] = {}
        self._pods: dict[str, set[Pod]] = {}
        self._chain_of_pod: dict[Pod, str] = {}

    def set_workload(self, workload: str, chain: str, *, admitted: bool = False) -> set[Pod]:
        """Record the chain of a Workload; "" if it has none, is Finished, or is gone.

        Returns:
            Pods that may belong to another Workload now.
        """
        old = self._chain_of_workload.pop(workload, "")
        if not old and not chain:
            return set()
        was = self._workloads[old].pop(workload) if old else False
        if chain:
            self._chain_of_workload[workload] = chain
            self._workloads.setdefault(chain, {})[workload] = admitted
        if old and not self._workloads[old]:
            del self._workloads[old]
        if (old, was) == (chain, admitted):
            return set()
        return {pod for one in {old, chain} if one for pod in self._pods.get(one, ())}

    def set_pod(self, pod: Pod, chain: str) -> None:
        """Record the chain of a pod; "" if it has none, or is gone."""
        old = self._chain_of_pod.get(pod, "")
        if old == chain:
            return
        if old:
            del self._chain_of_pod[pod]
            self._pods[old].discard(pod)
            if not self._pods[old]:
                del self._pods[old]
        if chain:
            self._chain_of_pod[pod] = chain
            self._pods.setdefault(chain, set()).add(pod)

    def workload_of(self, chain: str, named: str) -> str:
        """The Workload that a pod belongs to: of its chain, an admitted one if there is any.

        Args:
            chain: of the pod, "" for none.
            named: the Workload that the pod names.
        """
        found = self._workloads.get(chain) if chain else None
        if not found:
            return named
        return min(found, key=lambda key: (not found[key], key != named, key))
