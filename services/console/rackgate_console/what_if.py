"""Where a manifest would go: now, on an empty cluster, or with more nodes. Pure; writes nothing.

- Empty: without Workloads and the pods of jobs, with the same nodes and queues.
- More nodes: copies of a node of the flavor that the job would use. They are in new domains of the
  level above the hosts, each with as many hosts as the largest one has, next to the copied node.

Both are answered from another cache than that of the page (`Console.copied`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rackgate.api.names import HOSTNAME_LABEL, QUEUE_LABEL
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.explanation import Explanation
from rackgate_assigner.topology.model import NodeInfo
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.explain.cluster_reading import ClusterReading
from rackgate_cli.explain.manifest import (
    WORKLOAD,
    Document,
    preview_submission,
    select_document,
)
from rackgate_cli.explain.preview import explain_preview
from rackgate_cli.plain_yaml import decode_plain_yaml
from rackgate_console.responses import RejectedError

MAX_MANIFEST: Final = 256 * 1024
MAX_NODES: Final = 10_000
_NAME: Final = "what-if"
NOT_CHECKED: Final = (
    "the API server has not checked the manifest; `rackgate explain -f FILE` asks it to"
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        manifest: YAML or JSON of one job or Workload.
        namespace: of a manifest that names none.
        queue: LocalQueue instead of that of the manifest; "" for that of the manifest.
        empty: without Workloads and their pods.
        more_nodes: so many nodes more.
    """

    manifest: str
    namespace: str = ""
    queue: str = ""
    empty: bool = False
    more_nodes: int = 0


def question_of(body: Mapping[str, Any]) -> Question:
    """The question in the body of a request.

    Raises:
        RejectedError: a field is wrong (422).
    """
    manifest = _field(body, "manifest", str, "")
    if not manifest.strip():
        raise RejectedError(422, "paste the manifest of a job", field="manifest")
    if len(manifest.encode(errors="surrogatepass")) > MAX_MANIFEST:
        raise RejectedError(422, f"more than {MAX_MANIFEST >> 10} KiB", field="manifest")
    more = _field(body, "moreNodes", int, 0)
    if not 0 <= more <= MAX_NODES:
        raise RejectedError(422, f"{more} is not between 0 and {MAX_NODES}", field="moreNodes")
    return Question(
        manifest,
        _field(body, "namespace", str, ""),
        _field(body, "queue", str, ""),
        _field(body, "empty", bool, default=False),
        more,
    )


def _field(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    found = body.get(name, default)
    if type(found) is not kind:
        raise RejectedError(422, f"expected {kind.__name__}", field=name)
    return found


def document_of(question: Question) -> Document:
    """The job or Workload of a question, in its namespace and queue.

    Raises:
        RejectedError: the manifest is malformed, or has no job or Workload, or several (422).
    """
    try:
        raw = question.manifest.encode(errors="surrogatepass")
        document = select_document(decode_plain_yaml(raw, "manifest", aliases=True), "manifest")
    except CommandError as error:
        raise RejectedError(422, str(error), field="manifest") from error
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise RejectedError(422, "expected an object", field="metadata")
    if not question.queue:
        return document
    if document.get("kind") == WORKLOAD:
        spec = document.get("spec")
        return {
            **document,
            "spec": {**(spec if isinstance(spec, dict) else {}), "queueName": question.queue},
        }
    labels = metadata.get("labels") or {}
    if not isinstance(labels, dict):
        raise RejectedError(422, "expected an object", field="metadata.labels")
    labels = {**labels, QUEUE_LABEL: question.queue}
    return {**document, "metadata": {**metadata, "labels": labels}}


def namespace_of(document: Document, question: Question) -> str:
    """Where the job would be; "default" if nothing names a namespace."""
    named = (document.get("metadata") or {}).get("namespace")
    return named if isinstance(named, str) and named else question.namespace or "default"


def answer(
    question: Question,
    document: Document,
    found: ClusterReading,
    *,
    fair_sharing: tuple[str, ...] | None = None,
) -> tuple[Explanation, list[str]]:
    """What would happen, and what the answer leaves out.

    Args:
        question: what is asked.
        document: of `document_of`.
        found: the cluster, or the empty one; more nodes are added to its cache.
        fair_sharing: strategies of preemption in their order; None: fair sharing is off.

    Raises:
        RejectedError: the manifest names another namespace than the question (422).
    """
    notes = [NOT_CHECKED]
    try:
        preview = preview_submission(document, None, found, question.namespace or "default")
    except UsageError as error:
        raise RejectedError(422, str(error), field="manifest") from error

    def explained() -> Explanation:
        return explain_preview(
            preview, found, fair_sharing=fair_sharing, excluded=found.cache.excluded
        )

    if not question.more_nodes:
        return explained(), notes
    flavor = _flavor_of(explained(), found.cache)
    if flavor is None:
        notes.append("no flavor of the queue has a topology with nodes, so no nodes were added")
        return explained(), notes
    copies = copies_of_nodes(flavor, question.more_nodes)
    for node in copies:
        found.cache.put_node(node)
    explanation = explained()
    like = copies[0].labels
    path = "/".join(like[level] for level in flavor.tree.levels[:-1])
    notes.append(
        f"{len(copies)} nodes of flavor {flavor.flavor.name} were added, the first ones in {path}"
    )
    return explanation, notes


def _flavor_of(explanation: Explanation, cache: Cache) -> FlavorTopology | None:
    """The first flavor of the queue that has a topology with nodes."""
    topologies = cache.flavor_topologies().by_flavor
    queue = cache.cluster_queues.get(explanation.queue.cluster_queue) if explanation.queue else None
    for name in queue.flavors if queue is not None else ():
        found = topologies.get(name)
        if found is not None and found.tree.leaf_count:
            return found
    return None


def copies_of_nodes(topology: FlavorTopology, count: int) -> list[NodeInfo]:
    """So many more nodes like the most frequent ones of a topology."""
    tree = topology.tree
    shapes = Counter(tuple(sorted(node.allocatable.items())) for node in tree.nodes)
    (shape, _), *_ = shapes.most_common(1)
    like = next(node for node in tree.nodes if tuple(sorted(node.allocatable.items())) == shape)
    above = len(tree.levels) - (2 if tree.lowest_is_hostname else 1)
    per_domain = count
    if above >= 0:
        starts = tree.node_offsets[tree.leaf_ranges[above]]
        per_domain = max(1, int((starts[1:] - starts[:-1]).max()))
    found = []
    for number in range(count):
        labels = {**like.labels, HOSTNAME_LABEL: f"{_NAME}-{number}"}
        if above >= 0:
            labels[tree.levels[above]] = f"{_NAME}-{number // per_domain}"
        found.append(NodeInfo(f"{_NAME}-{number}", labels, like.allocatable, like.taints))
    return found
