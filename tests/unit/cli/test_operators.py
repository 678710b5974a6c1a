"""Operators as parts of a playground: found, built, registered, started with what flags.

The programs here are files that carry the build information of a Go program.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography import x509

from rackgate_cli.controlplane import install, operators, pki
from rackgate_cli.controlplane.binaries import build as building
from rackgate_cli.controlplane.binaries.find import find_binaries
from rackgate_cli.controlplane.binaries.versions import (
    BINARIES,
    JOBSET_VERSION,
    OPERATOR_BINARIES,
    OPERATORS,
    binaries_with,
    reported_version,
)
from rackgate_cli.controlplane.cluster import Cluster
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.controlplane.state import Playground, StateFolder
from rackgate_cli.errors import CommandError
from rackgate_cli.locations import deploy_dir

MANIFESTS = deploy_dir() / "controlplane"
QUIET = Progress(quiet=True)
JOBSET, KUBERAY, LWS = OPERATOR_BINARIES
PORTS = {
    "jobset": 30010,
    "jobset-webhook": 30011,
    "kuberay": 30012,
    "lws": 30013,
    "lws-webhook": 30014,
}
# Builds by writing the name after -o; tells where the module lies when asked.
FAKE_GO = """#!/bin/sh
echo "$@" >> "$GO_CALLS"
if [ "$1" = list ]; then echo "$GO_MODULE"; exit; fi
while [ "$1" != "-o" ]; do shift; done
echo "#!/bin/sh" > "$2"
"""
CRD = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"


def linked(version: str, module: str = JOBSET.source) -> bytes:
    return b"\x7fELF..path\tcommand-line\ndep\t" + f"{module}\t{version}\th1:abc=\n".encode()


def hook(kind: str, resource: str) -> dict[str, object]:
    return {
        "kind": kind,
        "metadata": {"name": "webhook-configuration"},
        "webhooks": [
            {
                "name": f"{resource}.kb.io",
                "clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/do"}},
                "rules": [{"resources": [resource], "operations": ["CREATE"]}],
            }
        ],
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    folder = StateFolder(tmp_path / "state")
    folder.path.mkdir()
    folder.kubeconfigs.mkdir()
    pki.ensure_pki(folder.pki, ("127.0.0.1",))
    playground = Playground(
        server="https://127.0.0.1:30000", ports=dict(PORTS), binaries={"jobset": "/bin/jobset"}
    )
    return Cluster(folder, playground, MANIFESTS, QUIET)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go whose module cache holds this folder."""
    tools, source = tmp_path / "tools", tmp_path / "module"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    (tools / "go").write_text(FAKE_GO)
    (tools / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("GO_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("GO_MODULE", str(source))
    for name, text in (
        ("config/components/crd/bases/jobsets.yaml", f"---\n{CRD}---\n{CRD}"),
        ("config/components/webhook/manifests.yaml", "kind: MutatingWebhookConfiguration\n"),
    ):
        (source / name).parent.mkdir(parents=True)
        (source / name).write_text(text)
    return source


def assets(folder: Path, *, version: str = JOBSET_VERSION, manifests: bool = True) -> Path:
    """A folder of the user's with JobSet in it."""
    folder.mkdir()
    (folder / "jobset").write_bytes(linked(version))
    (folder / "jobset").chmod(0o755)
    if manifests:
        (folder / "jobset.json").write_text("[]")
    return folder


def test_a_playground_has_no_operator_that_no_one_asked_for() -> None:
    assert binaries_with(()) == BINARIES
    assert binaries_with(("kuberay",)) == (*BINARIES, KUBERAY)
    assert binaries_with(("lws", "jobset")) == (*BINARIES, JOBSET, LWS)
    assert tuple(binary.name for binary in OPERATOR_BINARIES) == OPERATORS


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (linked("v0.8.0"), "v0.8.0"),
        (linked("v0.8.0").replace(b"dep\t", b"mod\t"), "v0.8.0"),
        (linked("v0.9.1"), "v0.9.1"),
        (linked("v0.8.0", "sigs.k8s.io/jobset-other"), None),
        (b"#!/bin/sh\n", None),
    ],
)
def test_the_version_of_an_operator_is_the_one_that_the_linker_recorded(
    tmp_path: Path, content: bytes, version: str | None
) -> None:
    (tmp_path / "jobset").write_bytes(content)
    assert reported_version(JOBSET, tmp_path / "jobset") == version


def test_a_missing_operator_reports_no_version(tmp_path: Path) -> None:
    assert reported_version(JOBSET, tmp_path / "jobset") is None


def build_jobset(tmp_path: Path) -> Path:
    target = tmp_path / "cache" / "bin" / "jobset-built"
    building.build(MANIFESTS / "jobset", (JOBSET,), target, target.parent, QUIET)
    return target


def test_a_build_keeps_the_modules_manifests_beside_the_program(
    tmp_path: Path, module: Path
) -> None:
    target = build_jobset(tmp_path)
    assert (target / "jobset").is_file()
    found = json.loads((target / "jobset.json").read_text())
    kinds = [entry["kind"] for entry in found]
    assert kinds == ["CustomResourceDefinition"] * 2 + ["MutatingWebhookConfiguration"]


def test_a_build_without_the_modules_manifests_leaves_nothing_behind(
    tmp_path: Path, module: Path
) -> None:
    (module / "config/components/crd/bases/jobsets.yaml").unlink()
    with pytest.raises(CommandError, match=r"sigs\.k8s\.io/jobset v0\.8\.0 has no file"):
        build_jobset(tmp_path)
    assert [path for path in (tmp_path / "cache" / "bin").iterdir() if path.is_dir()] == []


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("version", "manifests", "used"),
    [(JOBSET_VERSION, True, True), ("v0.7.0", True, False), (JOBSET_VERSION, False, False)],
)
def test_a_folder_of_the_users_counts_with_the_right_version_and_its_manifests(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    manifests: bool,
    used: bool,
) -> None:
    folder = assets(tmp_path / "assets", version=version, manifests=manifests)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    found = find_binaries(MANIFESTS, tmp_path / "cache", QUIET, operators=("jobset",))
    assert (found["jobset"].parent == folder) is used
    assert found["jobset"].with_name("jobset.json").is_file()


def test_every_operator_has_a_module_that_pins_its_version() -> None:
    for binary in OPERATOR_BINARIES:
        pinned = (MANIFESTS / binary.module / "go.mod").read_text()
        assert f"require {binary.source} {binary.version}\n" in pinned
        tools = (MANIFESTS / binary.module / "tools.go").read_text()
        assert f'_ "{binary.package}"' in tools


def test_the_place_in_the_cache_depends_on_the_manifests_that_are_kept() -> None:
    place = MANIFESTS / "jobset"
    fewer = JOBSET.__class__(**{**vars(JOBSET), "files": JOBSET.files[:1]})
    assert building.cache_key(place, (JOBSET,)) != building.cache_key(place, (fewer,))


def test_an_operators_webhooks_are_registered_by_url_and_authority(tmp_path: Path) -> None:
    path = tmp_path / "jobset.json"
    hooks = [hook("MutatingWebhookConfiguration", "jobsets")]
    path.write_text(json.dumps([{"kind": "CustomResourceDefinition"}, *hooks]))
    crd, found = install.operator_documents(path, "jobset", "https://127.0.0.1:1", b"PEM")
    assert crd == {"kind": "CustomResourceDefinition"}
    assert found["metadata"]["name"] == "jobset-webhook-configuration"
    (webhook,) = found["webhooks"]
    assert webhook["clientConfig"] == {"url": "https://127.0.0.1:1/do", "caBundle": "UEVN"}
    assert "objectSelector" not in webhook


@pytest.mark.requirement("TAS-29")
@pytest.mark.parametrize(
    ("name", "label", "operations"),
    [
        ("jobset", "jobset.sigs.k8s.io/jobset-name", ["CREATE"]),
        ("lws", "leaderworkerset.sigs.k8s.io/name", ["CREATE", "UPDATE"]),
    ],
)
def test_only_an_operators_own_pods_ask_its_webhook(
    tmp_path: Path, name: str, label: str, operations: list[str]
) -> None:
    path = tmp_path / "operator.json"
    path.write_text(json.dumps([hook("MutatingWebhookConfiguration", "pods")]))
    (found,) = install.operator_documents(path, name, "https://127.0.0.1:1", b"PEM")
    (webhook,) = found["webhooks"]
    (expression,) = webhook["objectSelector"]["matchExpressions"]
    assert expression == {"key": label, "operator": "Exists"}
    assert webhook["rules"] == [{"resources": ["pods"], "operations": operations}]


def test_only_the_stored_version_of_a_kind_is_installed(tmp_path: Path) -> None:
    path = tmp_path / "kuberay.json"
    versions = [{"name": "v1", "storage": True}, {"name": "v1alpha1", "storage": False}]
    crd = {"kind": "CustomResourceDefinition", "spec": {"group": "ray.io", "versions": versions}}
    path.write_text(json.dumps([crd]))
    (found,) = install.operator_documents(path, "kuberay", None, b"PEM")
    assert found["spec"] == {"group": "ray.io", "versions": versions[:1]}


def test_webhooks_of_an_operator_that_serves_none_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "kuberay.json"
    path.write_text(json.dumps([hook("ValidatingWebhookConfiguration", "rayclusters")]))
    assert install.operator_documents(path, "kuberay", None, b"PEM") == []


def test_operators_listen_on_loopback_alone_and_elect_no_leader(cluster: Cluster) -> None:
    for name in OPERATORS:
        flags = operators.arguments(cluster, name)
        assert f"--health-probe-bind-address=127.0.0.1:{PORTS[name]}" in flags
    assert "--enable-leader-election=false" in operators.arguments(cluster, "kuberay")
    for name, group in (("jobset", "config.jobset.x-k8s.io"), ("lws", "config.lws.x-k8s.io")):
        document = operators.configuration(name, 30011, Path("/certificates"))
        assert document["apiVersion"] == f"{group}/v1alpha1"
        assert document["leaderElection"] == {"leaderElect": False}
        assert document["webhook"]["host"] == "127.0.0.1"
        assert document["metrics"]["bindAddress"] == "0"


def test_an_operator_is_ready_when_it_also_serves_its_webhooks(cluster: Cluster) -> None:
    urls = [operators.ready_url(cluster, name) for name in OPERATORS]
    assert urls == [
        "http://127.0.0.1:30010/readyz",
        "http://127.0.0.1:30012/readyz",
        "https://127.0.0.1:30014/validate--v1-pod",
    ]


def test_an_operators_webhooks_are_served_for_loopback_by_the_clusters_authority(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "pki"
    pki.ensure_pki(folder, ("127.0.0.1",))
    serving = pki.ensure_operator(folder, "jobset", "someone", ("localhost", "127.0.0.1"))
    certificate = x509.load_pem_x509_certificate((serving / "tls.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    served = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert served.get_values_for_type(x509.DNSName) == ["localhost"]
    assert (serving / "tls.key").stat().st_mode & 0o777 == 0o600
    before = (serving / "tls.crt").read_bytes()
    assert pki.ensure_operator(folder, "jobset", "someone", ("localhost",)) == serving
    assert (serving / "tls.crt").read_bytes() == before, "certificates stay"


def test_an_operator_without_webhooks_gets_no_serving_certificate(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    pki.ensure_pki(folder, ("127.0.0.1",))
    assert not pki.ensure_operator(folder, "kuberay", "someone", ()).exists()
    assert (folder / "kuberay-client.crt").is_file()


def test_a_port_for_webhooks_is_chosen_once(cluster: Cluster) -> None:
    del cluster.playground.ports["jobset-webhook"]
    url = operators.webhook_url(cluster, "jobset")
    assert url == f"https://127.0.0.1:{cluster.playground.ports['jobset-webhook']}"
    assert operators.webhook_url(cluster, "jobset") == url
    assert operators.webhook_url(cluster, "kuberay") is None
