"""Jobs and Workloads that are not submitted, as `rackgate explain -f` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate.api import names
from rackgate.features import RENDER_FOR_KAI, Features
from rackgate.jobframework.kai import KAI_SCHEDULER
from rackgate.wire.core import Meta
from rackgate.wire.kueue import WorkloadPriorityClass
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain import workload as workload_explanation
from rackgate_assigner.explain.explanation import Explanation
from rackgate_assigner.workload.info import workload_info
from rackgate_cli.errors import UsageError
from rackgate_cli.explain.cluster_reading import ClusterReading
from rackgate_cli.explain.manifest import applied, load, preview_submission
from rackgate_cli.explain.preview import explain_preview
from tests.support.objects import BLOCK, RACK, job
from tests.unit.assigner.builders import cache_with, fx_a


def manifest(path: Path, *documents: Any) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def found() -> ClusterReading:
    return ClusterReading(Cache())


def of(document: Mapping[str, Any]) -> Any:
    return preview_submission(dict(document), None, found(), "team")


def test_one_of_several_is_chosen_by_name(tmp_path: Path) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    path = manifest(tmp_path / "all.yaml", job("a", 1), other, job("b", 2))
    assert load(path, "b")["spec"]["parallelism"] == 2
    with pytest.raises(UsageError, match="2 jobs and Workloads; add the name of one: a, b"):
        load(path, None)
    with pytest.raises(UsageError, match='named "c"'):
        load(path, "c")
    listed = manifest(tmp_path / "list.yaml", {"kind": "List", "items": [job("a", 1)]})
    assert load(listed, None)["kind"] == "Job"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "[1, 2]",
        "{",
        "a: &x [1]\nb: *x",
        "apiVersion: batch/v1\nkind: CronJob\n",
        "!!python/object/apply:os.system [echo]",
        "\x00",
        "kind: Job\n" * 3,
        "a: !!bool maybe",
        "a: !!timestamp soon",
        "a: !!int ''",
        "a: !!float " + ":".join("1" * 250),
    ],
)
def test_a_file_that_holds_nothing_to_explain_is_rejected(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UsageError):
        load(str(path), None)


@pytest.mark.parametrize("name", [".", "no\0name", "x" * 5000])
def test_what_is_no_file_is_said(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be read: "):
        load(name, None)


def test_of_a_field_that_is_there_twice_neither_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("apiVersion: batch/v1\nkind: Job\nspec: {parallelism: 1}\nspec: {}\n")
    with pytest.raises(UsageError, match='duplicate key "spec" in line 4'):
        load(str(path), None)


ANCHORED = """\
apiVersion: v1
kind: ConfigMap
data: {a: &image registry.example/trainer:1}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  labels: &labels
    kueue.x-k8s.io/queue-name: lq
    app: train
spec:
  template:
    metadata:
      labels:
        <<: *labels
        app: pods
    spec:
      restartPolicy: Never
      containers:
      - &main
        name: main
        resources: &large {requests: &amounts {cpu: "4"}, limits: *amounts}
      - <<: *main
        name: side
      - {name: third, resources: *large}
---
"""


def test_anchors_aliases_and_merge_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(ANCHORED)
    template = load(str(path), None)["spec"]["template"]
    assert template["metadata"]["labels"] == {names.QUEUE_LABEL: "lq", "app": "pods"}
    amounts = {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}
    assert template["spec"]["containers"] == [
        {"name": name, "resources": amounts} for name in ("main", "side", "third")
    ]


LAYERS = "".join(f"x{n}: &x{n} {{a: *x{n - 1}, b: *x{n - 1}}}\n" for n in range(1, 30))
MERGED = "".join(f"x{n}: &x{n} {{<<: [*x{n - 1}, *x{n - 1}]}}\n" for n in range(1, 30))
DEEP = "".join(f"x{n}: &x{n} {'[' * 30}*x{n - 1}{']' * 30}\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"x0: &x0 {{a: 1}}\n{LAYERS}", "aliases expand to more than 100000 values"),
        (f"x0: &x0 {{a: 1}}\n{MERGED}", "aliases expand to more than 100000 values"),
        (f"x0: &x0 []\n{DEEP}", "nested more than 100 deep"),
        ("spec: &all {all: *all}\n", 'alias "all" stands for itself'),
        ("spec: *nothing\n", "undefined alias"),
        ("spec: {a: &x 1}\n---\nspec: *x\n", "undefined alias"),
        ("x: &x {a: 1, a: 2}\ny: {<<: *x}\n", 'duplicate key "a" in line 3'),
    ],
)
def test_aliases_that_expand_to_too_much_or_to_nothing_are_rejected(
    text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"apiVersion: batch/v1\nkind: Job\n{text}")
    with pytest.raises(UsageError, match=words):
        load(str(path), None)


def test_a_file_of_other_kinds_is_reported_by_them(tmp_path: Path) -> None:
    path = manifest(tmp_path / "ray.yaml", {"apiVersion": "ray.io/v1", "kind": "RayService"})
    with pytest.raises(UsageError, match=r"or Workload; it contains ray\.io/v1 RayService"):
        load(path, None)


@pytest.mark.parametrize("value", [r'"\ud800"', "[" * 400 + "]" * 400])
def test_what_json_cannot_say_is_rejected(value: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"apiVersion: batch/v1\nkind: Job\nspec: {value}\n")
    with pytest.raises(UsageError):
        load(str(path), None)


def test_a_file_beyond_all_measure_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"#" * (8 * 2**20 + 1))
    with pytest.raises(UsageError, match="larger than 8 MiB"):
        load(str(path), None)


def test_a_job_becomes_the_workload_that_the_assigner_would_make() -> None:
    made = of(job("train", 4, required=RACK))
    assert made.name == "team/train"
    (podset,) = made.workload.spec.pod_sets
    assert (podset.count, podset.topology_request.required) == (4, RACK)
    assert made.workload.spec.queue_name == "queue"


def test_a_workload_gets_the_request_of_its_annotations() -> None:
    template = job("train", 4, required=RACK)["spec"]["template"]
    spec = {"queueName": "q", "podSets": [{"name": "main", "count": 4, "template": template}]}
    document = {
        "apiVersion": names.API_VERSION,
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": spec,
    }
    made = of(document)
    assert made.errors == ()
    assert made.workload.spec.pod_sets[0].topology_request.required == RACK


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"annotations": {names.REQUIRED_TOPOLOGY: "no key!"}}, names.REQUIRED_TOPOLOGY),
        ({"annotations": {names.SLICE_SIZE: "2"}}, names.SLICE_SIZE),
        ({"queue": "Not A Name"}, names.QUEUE_LABEL),
    ],
)
def test_what_the_webhook_would_reject_is_reported_by_its_field(
    change: dict[str, Any], path: str
) -> None:
    made = of(job("train", 4, **change))
    assert made.workload is None
    assert any(path in error.path for error in made.errors)


@pytest.mark.parametrize(
    "spec",
    [
        {"template": 3},
        {"parallelism": "many"},
        {"template": {"spec": {"tolerations": "all"}}},
        {"template": {"metadata": {"labels": [1]}}},
    ],
)
def test_a_malformed_job_is_reported_not_raised(spec: dict[str, Any]) -> None:
    made = of(job("train", 1, required=RACK, spec=spec))
    assert made.errors or made.workload is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**63) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
PLACES = (
    ("metadata",),
    ("metadata", "name"),
    ("metadata", "labels"),
    ("metadata", "namespace"),
    ("spec",),
    ("spec", "parallelism"),
    ("spec", "completions"),
    ("spec", "suspend"),
    ("spec", "template"),
    ("spec", "template", "metadata"),
    ("spec", "template", "metadata", "annotations"),
    ("spec", "template", "spec"),
    ("spec", "template", "spec", "containers"),
    ("spec", "template", "spec", "nodeSelector"),
    ("spec", "template", "spec", "tolerations"),
    ("spec", "template", "spec", "affinity"),
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PLACES), JSON)
def test_whatever_a_job_holds_it_is_judged(place: tuple[str, ...], value: Any) -> None:
    document = job("train", 1, required=RACK)
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    made = of(document)
    if made.workload is None:
        assert made.errors or made.unmanaged_reason or made.no_workload
    else:
        row = workload_info(made.workload)
        assert workload_explanation.explain_row(Cache(), row, "notSubmitted", Features()).summary


def test_a_job_that_is_not_ours_is_left_alone() -> None:
    assert "no label" in of(job("train", 1, queue=None)).unmanaged_reason
    assert "did you mean" not in of(job("train", 1, queue=None)).unmanaged_reason
    other = of(job("train", 1, spec={"managedBy": "example.com/other"}))
    assert "managedBy" in other.unmanaged_reason


def test_a_job_for_kai_is_asked_to_be_kais_where_the_gate_is_on() -> None:
    document = job("train", 4, required=RACK, pod={"schedulerName": KAI_SCHEDULER})
    without = of(document)
    assert without.workload is not None
    (told,) = without.warnings
    assert KAI_SCHEDULER in told
    assert f"if feature gate {RENDER_FOR_KAI} of the webhook is on" in told
    gated = ClusterReading(Cache(Features(render_for_kai=True)))
    assert preview_submission(document, None, gated, "team").unmanaged_reason.endswith(
        f"KAI schedules it (feature gate {RENDER_FOR_KAI})"
    )
    # Governed before the gate came: it stays so.
    there = preview_submission(document, None, gated, "team", stored=True)
    assert (there.workload is not None, there.warnings) == (True, [])
    plain = preview_submission(job("train", 4), None, gated, "team")
    assert (plain.workload is not None, plain.warnings) == (True, [])


def test_both_levels_are_judged_by_the_gate() -> None:
    document = job("train", 4, required=BLOCK, preferred=RACK)
    assert of(document).errors
    gated = ClusterReading(Cache(Features(required_and_preferred=True)))
    made = preview_submission(document, None, gated, "team")
    assert made.errors == ()
    assert made.workload is not None
    request = made.workload.spec.pod_sets[0].topology_request
    assert request is not None
    assert (request.required, request.preferred) == (BLOCK, RACK)


def test_two_namespaces_contradict_each_other() -> None:
    document = job("train", 1)
    document["metadata"]["namespace"] = "a"
    with pytest.raises(UsageError, match='namespace "a", --namespace is "b"'):
        preview_submission(document, "b", found(), "team")


def of_job(document: Mapping[str, Any], reading: ClusterReading) -> Explanation:
    return explain_preview(preview_submission(dict(document), None, reading, "team"), reading)


@pytest.mark.requirement("TAS-20")
@pytest.mark.parametrize("known", [(), ("urgentt",), ("a", "b")])
def test_without_its_priority_class_no_workload_is_created(known: tuple[str, ...]) -> None:
    reading = ClusterReading(cache_with(fx_a()))
    for name in known:
        reading.workload_classes[name] = WorkloadPriorityClass(Meta(name), 1)
    labels = {names.PRIORITY_CLASS_LABEL: "urgent"}
    explained = of_job(job("train", 1, queue="lq", labels=labels), reading)
    assert (explained.state, explained.fits) == ("notSubmitted", False)
    assert explained.summary == (
        'WorkloadPriorityClass "urgent" does not exist: no Workload is created until it does.'
    )
    change = explained.changes[0]
    assert (change.kind, change.when) == ("priorityClass", "now")
    assert (
        change.text
        == {
            (): 'create WorkloadPriorityClass "urgent"',
            ("urgentt",): 'use WorkloadPriorityClass "urgentt" instead of "urgent"',
            ("a", "b"): 'create WorkloadPriorityClass "urgent", or use one that exists: a, b',
        }[known]
    )


def test_a_priority_class_that_cannot_be_read_is_not_called_missing() -> None:
    reading = ClusterReading(cache_with(fx_a()), unlisted={"WorkloadPriorityClass"})
    labels = {names.PRIORITY_CLASS_LABEL: "urgent"}
    explained = of_job(job("train", 1, queue="lq", labels=labels), reading)
    assert explained.fits
    assert 'WorkloadPriorityClass "urgent" is not known here' in explained.warnings[0]


@pytest.mark.requirement("TAS-20")
@pytest.mark.parametrize(
    ("spec", "words", "change"),
    [
        (
            {"completions": 0},
            "Kubernetes completes it at once (completions: 0).",
            "set spec.completions to at least 1",
        ),
        (
            {"parallelism": 0, "completions": None},
            "It stays suspended while spec.parallelism is 0.",
            "set spec.parallelism to at least 1",
        ),
    ],
)
def test_a_job_without_pods_is_not_called_admitted(
    spec: dict[str, Any], words: str, change: str
) -> None:
    explained = of_job(job("train", 1, queue="lq", spec=spec), ClusterReading(cache_with(fx_a())))
    assert explained.summary == (
        f"The Job requests no pods, so no Workload is created for it. {words}"
    )
    assert (explained.fits, [one.text for one in explained.changes]) == (False, [change])


def test_an_annotation_that_is_nearly_a_topology_request_is_a_warning() -> None:
    document = job("train", 1)
    document["spec"]["template"]["metadata"] = {
        "annotations": {
            "kueue.x-k8s.io/podset-requird-topology": RACK,
            "example.com/podset-required-topology": RACK,
            names.POD_INDEX_OFFSET: "0",
        }
    }
    (warning,) = of(document).warnings
    assert "requird-topology] has no effect" in warning
    assert f'did you mean "{names.REQUIRED_TOPOLOGY}"?' in warning


def test_our_patches_are_applied_as_the_server_would() -> None:
    operations: list[dict[str, Any]] = [
        {"op": "add", "path": "/a/b~1c", "value": 1},
        {"op": "replace", "path": "/l/0", "value": 2},
        {"op": "add", "path": "/l/-", "value": 3},
        {"op": "remove", "path": "/x"},
        {"op": "remove", "path": "/l/1"},
    ]
    before = {"a": {}, "l": [1, 9], "x": 0}
    assert applied(before, operations) == {"a": {"b/c": 1}, "l": [2, 3]}
    assert before == {"a": {}, "l": [1, 9], "x": 0}


@pytest.mark.parametrize("part", ["labels", "annotations"])
@pytest.mark.parametrize(
    "key", ["kueue.x-k8s.io/queue_name", "kueue.k8s.io/Queue", "rackgate.dev/queue"]
)
def test_what_was_meant_as_the_queue_label_is_named(part: str, key: str) -> None:
    document = job("train", 1, queue=None)
    document["metadata"].setdefault(part, {})[key] = "lq"
    assert f"did you mean that by metadata.{part}[{key}]?" in of(document).unmanaged_reason
