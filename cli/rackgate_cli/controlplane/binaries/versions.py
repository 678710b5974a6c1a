"""The programs of the playground, their versions, and how each is built and identified."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rackgate.features import GANG_SCHEDULING, NATIVE_POD_GROUPS

KUBERNETES_VERSION: Final = "v1.36.3"
ETCD_VERSION: Final = "v3.6.8"
KWOK_VERSION: Final = "v0.8.0"
JOBSET_VERSION: Final = "v0.8.0"
KUBERAY_VERSION: Final = "v1.4.2"
LWS_VERSION: Final = "v0.7.0"

SERVICES: Final = ("webhook", "assigner", "ungater")

# The control plane in starting order; the components of one row start together.
STAGES: Final[tuple[tuple[str, ...], ...]] = (
    ("etcd",),
    ("kube-apiserver",),
    ("kube-controller-manager", "kube-scheduler", "kwok"),
)
COMPONENTS: Final = tuple(name for stage in STAGES for name in stage)
# Operators of job kinds that are not built into Kubernetes; `rackgate up --with` adds them.
OPERATORS: Final = ("jobset", "kuberay", "lws")
# CRDs that are installed without their controller -> their folder next to the Go modules.
KINDS: Final = {"kai-crds": "kai"}
# Alpha features of the control plane itself -> the gates of the services that use them.
FEATURES: Final = {"gang-scheduling": (GANG_SCHEDULING, NATIVE_POD_GROUPS)}

_VERSION_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True)
class Binary:
    """One program of the control plane.

    Attributes:
        name: file name of the program.
        version: the version that is accepted, with a leading "v".
        module: folder under `deploy/controlplane` whose go.mod pins it.
        package: Go package that is built.
        ldflags: linker settings beyond "-s -w".
        version_args: arguments that make the program print its version. Without any, the version
            of `source` that the Go linker recorded counts.
        source: Go module whose files are kept next to the program, "" for none.
        files: glob patterns of those YAML files; they become one JSON list of objects.
    """

    name: str
    version: str
    module: str
    package: str
    ldflags: tuple[str, ...] = ()
    version_args: tuple[str, ...] = field(default=("--version",))
    source: str = ""
    files: tuple[str, ...] = ()

    @property
    def manifests(self) -> str | None:
        """File name of the manifests next to the program, None if it has none."""
        return f"{self.name}.json" if self.files else None

    @property
    def file_names(self) -> tuple[str, ...]:
        """Every file that belongs to the program."""
        return (self.name,) if self.manifests is None else (self.name, self.manifests)


def _kubernetes_ldflags() -> tuple[str, ...]:
    # Without these flags the version is v0.0.0-master, which some clients reject.
    _, minor, _ = KUBERNETES_VERSION.split(".")
    values = {
        "gitVersion": KUBERNETES_VERSION,
        "gitMajor": KUBERNETES_VERSION.removeprefix("v").split(".")[0],
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0" * 40,
        "buildDate": "1970-01-01T00:00:00Z",
    }
    flags = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items()]
    flags += [
        f"-X k8s.io/client-go/pkg/version.{key}={values[key]}"
        for key in ("gitVersion", "gitMajor", "gitMinor")
    ]
    return tuple(flags)


def _kubernetes(name: str, version_args: tuple[str, ...] = ("--version",)) -> Binary:
    return Binary(
        name=name,
        version=KUBERNETES_VERSION,
        module="kubernetes",
        package=f"k8s.io/kubernetes/cmd/{name}",
        ldflags=_kubernetes_ldflags(),
        version_args=version_args,
    )


BINARIES: Final[tuple[Binary, ...]] = (
    Binary("etcd", ETCD_VERSION, "etcd", "go.etcd.io/etcd/server/v3"),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubectl", ("version", "--client")),
    Binary(
        "kwok",
        KWOK_VERSION,
        "kwok",
        "sigs.k8s.io/kwok/cmd/kwok",
        (f"-X sigs.k8s.io/kwok/pkg/consts.Version={KWOK_VERSION}",),
    ),
)

OPERATOR_BINARIES: Final[tuple[Binary, ...]] = (
    Binary(
        "jobset",
        JOBSET_VERSION,
        "jobset",
        "sigs.k8s.io/jobset",
        (f"-X sigs.k8s.io/jobset/pkg/version.GitVersion={JOBSET_VERSION}",),
        version_args=(),
        source="sigs.k8s.io/jobset",
        files=(
            "config/components/crd/bases/*.yaml",
            "config/components/webhook/manifests.yaml",
        ),
    ),
    Binary(
        "kuberay",
        KUBERAY_VERSION,
        "kuberay",
        "github.com/ray-project/kuberay/ray-operator",
        version_args=(),
        source="github.com/ray-project/kuberay/ray-operator",
        files=("config/crd/bases/*.yaml",),
    ),
    Binary(
        "lws",
        LWS_VERSION,
        "lws",
        "sigs.k8s.io/lws/cmd",
        (f"-X sigs.k8s.io/lws/pkg/version.GitVersion={LWS_VERSION}",),
        version_args=(),
        source="sigs.k8s.io/lws",
        files=("config/crd/bases/*.yaml", "config/webhook/manifests.yaml"),
    ),
)


def binaries_with(operators: Sequence[str]) -> tuple[Binary, ...]:
    """Return the programs of a control plane with these operators, those of a module together."""
    return BINARIES + tuple(binary for binary in OPERATOR_BINARIES if binary.name in operators)


_VERSION: Final = re.compile(r"\bv?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)")


def reported_version(binary: Binary, path: Path) -> str | None:
    """Return the version that the program at `path` reports ("v1.36.3"), None if it reports none.

    The first version in the output counts; every program here prints its own before others.
    """
    if not binary.version_args:
        return _linked_version(binary, path)
    try:
        done = subprocess.run(
            [str(path), *binary.version_args],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stdout + done.stderr)
    return f"v{found.group(1)}" if done.returncode == 0 and found else None


def _linked_version(binary: Binary, path: Path) -> str | None:
    """Return the version of a Go module that the linker recorded in a program."""
    # A line of the build information: "mod" or "dep", module, version, checksum.
    line = re.compile(rb"(?:mod|dep)\t" + re.escape(binary.source.encode()) + rb"\t(v[^\t\n]+)")
    try:
        found = line.search(path.read_bytes())
    except OSError:
        return None
    return found.group(1).decode() if found else None
