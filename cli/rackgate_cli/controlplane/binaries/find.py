"""Where the control plane's binaries come from: a matching folder, the cache, a download, Go."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rackgate_cli.controlplane.binaries.build import build, cache_key, locked
from rackgate_cli.controlplane.binaries.download import DownloadSource, download
from rackgate_cli.controlplane.binaries.versions import Binary, binaries_with, reported_version
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.errors import CommandError

ASSETS_VARIABLE: Final = "KUBEBUILDER_ASSETS"


def find_binaries(
    manifests: Path,
    cache: Path,
    progress: Progress,
    source: DownloadSource | None = None,
    operators: Sequence[str] = (),
) -> dict[str, Path]:
    """Return the path of every program, fetching or building what is not there.

    Per Go module (etcd, kubernetes, kwok, and the operators) the first of these that has all of
    its programs counts: the folder named by KUBEBUILDER_ASSETS and then PATH, if the versions
    match exactly; the cache; `source`; the Go build. Where an operator lies, its manifests lie.

    Args:
        manifests: `deploy/controlplane`, with one folder per Go module.
        cache: the project's cache folder.
        progress: told about everything that takes long.
        source: the download the user named, if any.
        operators: which of `components.OPERATORS` are needed.

    Raises:
        CommandError: nothing works; the message names what is missing.
    """
    found: dict[str, Path] = {}
    wanted = binaries_with(operators)
    for module, group in itertools.groupby(wanted, key=lambda binary: binary.module):
        binaries = tuple(group)
        cached = cache / "bin" / cache_key(manifests / module, binaries)
        folder = _matching(binaries) or _cached(
            cached, manifests / module, binaries, source, progress
        )
        found.update({binary.name: folder / binary.name for binary in binaries})
    return found


def _cached(
    folder: Path,
    module: Path,
    binaries: Sequence[Binary],
    source: DownloadSource | None,
    progress: Progress,
) -> Path:
    if folder.is_dir():
        return folder
    if source is None:
        build(module, binaries, folder, folder.parent, progress)
        return folder
    with locked(folder, progress):
        if folder.is_dir():
            return folder
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            download(source, binaries, scratch, progress)
            _reject_other_versions(binaries, scratch)
            scratch.chmod(0o755)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _reject_other_versions(binaries: Sequence[Binary], folder: Path) -> None:
    for binary in binaries:
        version = reported_version(binary, folder / binary.name)
        if version != binary.version:
            raise CommandError(
                f"the downloaded {binary.name} reports version {version or 'none'}, "
                f"needed is {binary.version}"
            )


def _matching(binaries: Sequence[Binary]) -> Path | None:
    """Return the first folder of the user's that has all programs at exactly these versions."""
    assets = os.environ.get(ASSETS_VARIABLE)
    folders = [assets] if assets else []
    folders += os.environ.get("PATH", "").split(os.pathsep)
    for name in dict.fromkeys(folder for folder in folders if folder):
        folder = Path(name).absolute()
        if not all(_complete(folder, binary) for binary in binaries):
            continue
        with ThreadPoolExecutor() as pool:
            paths = [folder / binary.name for binary in binaries]
            versions = list(pool.map(reported_version, binaries, paths))
        if versions == [binary.version for binary in binaries]:
            return folder
    return None


def _complete(folder: Path, binary: Binary) -> bool:
    if binary.manifests is not None and not (folder / binary.manifests).is_file():
        return False
    return os.access(folder / binary.name, os.X_OK)
