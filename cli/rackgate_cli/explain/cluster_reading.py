"""What an explanation is computed from. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rackgate.api import names
from rackgate.runtime.namespaces import Selectors
from rackgate.wire import core, kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.unsupported import unsupported_of_queue

_OF_A_QUEUE: Final = 'ClusterQueue "'


@dataclass(slots=True)
class ClusterReading:
    """What was read.

    Attributes:
        cache: of the assigner, filled.
        workloads: by `namespace/name`, with all conditions.
        workload_classes: WorkloadPriorityClasses by name.
        classes: PriorityClasses by name.
        selectors: in which namespaces jobs are managed, by plural of their kind.
        warnings: what could not be read.
        unlisted: kinds of which not all objects could be read.
        one_namespace: nothing else was read.
        cluster_queues: by name; empty if nothing else was read.
    """

    cache: Cache
    workloads: dict[str, kueue.Workload] = field(default_factory=dict)
    workload_classes: dict[str, kueue.WorkloadPriorityClass] = field(default_factory=dict)
    classes: dict[str, core.PriorityClass] = field(default_factory=dict)
    selectors: Selectors = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    unlisted: set[str] = field(default_factory=set)
    one_namespace: bool = False
    cluster_queues: dict[str, kueue.ClusterQueue] = field(default_factory=dict)

    def without_effect(self, workload: kueue.Workload) -> list[str]:
        """What the ClusterQueue of a Workload sets and has no effect.

        Who may read one namespace alone cannot read it; the Workload says it then.
        """
        if self.one_namespace:
            said = workload.condition(names.WorkloadCondition.UNSUPPORTED_FIELDS)
            parts = said.message.split("; ") if said is not None else []
            return [one for one in parts if one.startswith(_OF_A_QUEUE)]
        admission = workload.status.admission
        if admission is not None:
            name = admission.cluster_queue
        else:
            key = f"{workload.metadata.namespace}/{workload.spec.queue_name}"
            local_queue = self.cache.local_queues.get(key)
            name = "" if local_queue is None else local_queue.cluster_queue
        return list(map(str, unsupported_of_queue(self.cluster_queues.get(name))))
