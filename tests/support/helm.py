"""Helm, of a pinned version, as the tests of the chart need it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from rackgate_cli.controlplane.binaries.versions import Binary, reported_version
from tests.support.go_programs import built

HELM_VERSION: Final = "v3.19.0"
_PACKAGE: Final = "helm.sh/helm/v3"
MODULE: Final = Path(__file__).resolve().parents[1] / "integration" / "helm"
# As in Helm's own build: the version of Kubernetes that charts see without a cluster.
_KUBERNETES: Final = {"k8sVersionMajor": "1", "k8sVersionMinor": "34"}
_BINARY: Final = Binary(
    "helm",
    HELM_VERSION,
    "helm",
    f"{_PACKAGE}/cmd/helm",
    (
        f"-X {_PACKAGE}/internal/version.version={HELM_VERSION}",
        *(
            f"-X {_PACKAGE}/pkg/{package}.{name}={value}"
            for package in ("chartutil", "lint/rules")
            for name, value in _KUBERNETES.items()
        ),
    ),
    version_args=("version", "--short"),
)


def helm() -> Path:
    """The program: from PATH if it has this version, or built once and cached."""
    found = shutil.which("helm")
    if found is not None and reported_version(_BINARY, Path(found)) == HELM_VERSION:
        return Path(found)
    return built(MODULE, _BINARY, _PACKAGE)
