"""Pages of docs/tasks: blocks parse, every page is run or says by whom, manifests are valid."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api.names import GANG_GROUP, GROUP, OSMO_GROUP
from rackgate.api.osmo import Pool
from rackgate.api.queues import ClusterQueue, LocalQueue, ResourceFlavor, WorkloadPriorityClass
from rackgate.api.topology import Topology
from rackgate.features import RENDER_FOR_KAI, Features
from rackgate.gang.validation import errors_of
from rackgate.jobframework.registry import find_linked_kind
from rackgate.runtime.settings import load_settings
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.settings import AssignerSettings
from rackgate_cli.explain.cluster_reading import ClusterReading
from rackgate_cli.explain.manifest import preview_submission
from rackgate_console.settings import ConsoleSettings
from rackgate_webhook.admission.linked import validate_linked
from rackgate_webhook.admission.plain_pods import plain_pod_created
from rackgate_webhook.admission.review import Review
from rackgate_webhook.settings import WebhookSettings
from tests.support.task_pages import (
    COMMANDS,
    ELSEWHERE,
    FILES,
    FOLDER,
    OUTPUT,
    Block,
    blocks,
    missing,
    pages,
)

ROOT = FOLDER.parent.parent
MODELS: dict[str, Any] = {
    model.__name__: model
    for model in (Topology, ResourceFlavor, ClusterQueue, LocalQueue, WorkloadPriorityClass, Pool)
}
SETTINGS: dict[str, Any] = {
    "AssignerConfiguration": AssignerSettings,
    "WebhookConfiguration": WebhookSettings,
    "ConsoleConfiguration": ConsoleSettings,
}
JOBS = ("Job", "JobSet", "RayCluster", "RayJob")
NOT_RUN = 25  # blocks of all pages that only show what other tests run
ALL = [(page, block) for page in pages() for block in blocks(page.read_text())]
MANIFESTS = [
    (f"{page.stem}:{block.name}", document)
    for page, block in ALL
    if block.language == "yaml"
    for document in yaml.safe_load_all(block.text)
]


def ids(found: tuple[Path, Block]) -> str:
    return f"{found[0].stem}:{found[1].line}"


@pytest.mark.parametrize("found", ALL, ids=ids)
def test_every_block_is_commands_a_named_file_or_output(found: tuple[Path, Block]) -> None:
    _, block = found
    assert block.language in (*COMMANDS, *FILES, *OUTPUT)
    assert bool(block.name) == (block.language in FILES), "files begin with # FILE: name"
    assert block.language in COMMANDS or not block.reason
    if block.language in COMMANDS:
        done = subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    if block.language == "python":
        ast.parse(block.text)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_no_fence_is_overlooked(page: Path) -> None:
    text = page.read_text()
    assert text.count("\n```") == 2 * len(blocks(text))
    assert text.count("<!-- not run: ") == sum(bool(it.reason) for it in blocks(text))
    for kind in OUTPUT:
        assert f"```{kind}" not in text or page.stem in ELSEWHERE or "```bash" in text


def test_what_is_run_elsewhere_names_a_page_and_a_file_that_is_there() -> None:
    assert set(ELSEWHERE) <= {page.stem for page in pages()}
    for reason in ELSEWHERE.values():
        for path in re.findall(r"tests/[\w/]+\.py", reason):
            assert (ROOT / path).exists()
    for _, block in ALL:
        for path in re.findall(r"tests/[\w/]+\.py", block.reason):
            assert (ROOT / path).exists()


def test_few_blocks_are_not_run() -> None:
    assert sum(bool(block.reason) for _, block in ALL) <= NOT_RUN


@pytest.mark.parametrize(("name", "document"), MANIFESTS, ids=[name for name, _ in MANIFESTS])
def test_every_manifest_is_valid(name: str, document: Any, tmp_path: Path) -> None:
    if isinstance(document, list) or "apiVersion" not in document:
        return  # a file of OSMO: the page runs commands on it
    group, kind = document["apiVersion"].rpartition("/")[0], document["kind"]
    if kind == "CronJob":
        document = {**document["spec"]["jobTemplate"], "apiVersion": "batch/v1", "kind": "Job"}
        document["metadata"]["name"], kind = "run", "Job"
    linked = find_linked_kind(group, kind)
    if linked is not None:
        found = validate_linked(linked, Review("uid", f"{group}/{kind}", "CREATE", document, {}))
        assert (found.errors, found.warnings) == ([], [])
    elif kind in JOBS:
        # The pages of elastic jobs and gangs turn these gates on first.
        elastic = name.startswith("run-an-elastic-job:")
        gangs = name.startswith(("run-a-gang:", "run-a-cronjob:", "run-a-jobset:"))
        cache = Cache(
            Features(elastic_jobs=elastic, elastic_indexed_jobs=elastic, gang_scheduling=gangs)
        )
        preview = preview_submission(document, None, ClusterReading(cache), "team-a")
        assert list(preview.errors) == []
        assert [text for text in preview.warnings if RENDER_FOR_KAI not in text] == []
    elif kind == "Pod":
        assert plain_pod_created(document).errors == []
    elif group in (GROUP, OSMO_GROUP):
        MODELS[kind].model_validate(document)
    elif group == "apps":
        found = document["spec"]
        selected, labels = found["selector"]["matchLabels"], found["template"]["metadata"]["labels"]
        assert selected.items() <= labels.items()
    elif group == GANG_GROUP:
        assert errors_of(document["spec"], rev_n=False) == []
    elif group == "config.rackgate.dev":
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(document))
        load_settings(SETTINGS[kind], service=kind.removesuffix("Configuration"), config=path)
    elif kind != "TrainingRuntime":
        assert kind in ("Kustomization", "Component")
        for entry in [*document.get("resources", ()), *document.get("components", ())]:
            path, ours = entry.removeprefix("../"), "rackgate/" in entry
            folder = ROOT / path.removeprefix("rackgate/")
            shown = f"{name.partition(':')[0]}:{path}/kustomization.yaml" in dict(MANIFESTS)
            assert (folder / "kustomization.yaml").exists() if ours else shown, f"{name}: {entry}"


def test_the_patch_of_settings_keeps_what_the_base_has() -> None:
    """It replaces the whole file of the ConfigMap."""
    (document,) = [it for name, it in MANIFESTS if name == "configure:kustomization.yaml"]
    (patch,) = document["patches"]
    shown = yaml.safe_load(yaml.safe_load(patch["patch"])["data"]["config.yaml"])
    text = (ROOT / "deploy" / "services" / "assigner.yaml").read_text()
    (base,) = [it for it in yaml.safe_load_all(text) if it["kind"] == "ConfigMap"]
    kept = yaml.safe_load(base["data"]["config.yaml"])
    assert {key: shown.get(key) for key in kept} == kept
    assert set(shown) - set(kept) == {"resources"}


def test_dots_stand_for_any_text_and_blanks_for_any_number() -> None:
    printed = "NAME      PODS\njob-a-1b2  3   of 4\n"
    assert missing("NAME PODS\njob-a-...  3 of 4\n", printed) == []
    assert missing("job-a-... 4 of 4\n...\nNAME\n", printed) == ["job-a-... 4 of 4", "NAME"]
