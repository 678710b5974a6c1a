"""What the playground runs: programs, their versions, how each is built and recognised."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

KUBERNETES_VERSION: Final = "v1.36.3"
ETCD_VERSION: Final = "v3.6.8"
KWOK_VERSION: Final = "v0.8.0"

SERVICES: Final = ("webhook", "assigner", "ungater")

# The control plane in starting order; those of one row start together.
STAGES: Final[tuple[tuple[str, ...], ...]] = (
    ("etcd",),
    ("kube-apiserver",),
    ("kube-controller-manager", "kube-scheduler", "kwok"),
)
COMPONENTS: Final = tuple(name for stage in STAGES for name in stage)

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
        version_args: arguments that make the program print its version.
    """

    name: str
    version: str
    module: str
    package: str
    ldflags: tuple[str, ...] = ()
    version_args: tuple[str, ...] = field(default=("--version",))


def _kubernetes_ldflags() -> tuple[str, ...]:
    # Without these the server answers v0.0.0-master, and clients that parse the version refuse it.
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

_VERSION: Final = re.compile(r"\bv?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)")


def reported_version(binary: Binary, path: Path) -> str | None:
    """Return the version that the program at `path` reports ("v1.36.3"), None if it reports none.

    The first version in the output counts; every program here prints its own before others.
    """
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
