"""etcd's own program that restores a copy, of the version of the playground's etcd."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from rackgate_cli.controlplane.binaries.versions import ETCD_VERSION, Binary
from tests.support.go_programs import built

MODULE: Final = Path(__file__).resolve().parents[1] / "integration" / "etcdutl"
_BINARY: Final = Binary("etcdutl", ETCD_VERSION, "etcdutl", "go.etcd.io/etcd/etcdutl/v3")


def etcdutl() -> Path:
    """The program: from PATH, or built once and cached, as the control plane is."""
    found = shutil.which("etcdutl")
    if found is not None:
        return Path(found)
    return built(MODULE, _BINARY, _BINARY.package)
