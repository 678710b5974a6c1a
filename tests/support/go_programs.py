"""Programs that tests and benches build with Go, once, as the control plane is built."""

from __future__ import annotations

from pathlib import Path

from rackgate_cli.controlplane.binaries.build import build, cache_key
from rackgate_cli.controlplane.binaries.versions import Binary
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.locations import cache_dir


def built(module: Path, binary: Binary, pinned: str) -> Path:
    """The program; it is built if the cache has none.

    Args:
        module: folder with its go.mod.
        binary: the program.
        pinned: Go module whose version go.mod must name.

    Raises:
        CommandError: Go is missing, or the build failed.
    """
    assert f"{pinned} {binary.version}" in (module / "go.mod").read_text()
    folder = cache_dir() / "bin" / cache_key(module, (binary,))
    if not folder.is_dir():
        build(module, (binary,), folder, folder.parent, Progress())
    return folder / binary.name
