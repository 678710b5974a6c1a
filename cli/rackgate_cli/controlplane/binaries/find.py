"""Finds the control plane's binaries: in a folder, in the cache, as a download, or built with Go.

A download is accepted only with matching SHA-256 checksums and versions.
"""

from __future__ import annotations

import hashlib
import http.client
import itertools
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rackgate_cli.controlplane.binaries.build import build, cache_key, locked
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

    For each Go module (etcd, kubernetes, kwok, and the operators) the first of these that has all
    programs is used: the folder KUBEBUILDER_ASSETS and then PATH, if the versions match exactly;
    the cache; `source`; the Go build. The manifests of an operator are in the folder of its
    program.

    Args:
        manifests: `deploy/controlplane`, with one folder per Go module.
        cache: the project's cache folder.
        progress: prints the long steps.
        source: the download that the user named, if any.
        operators: which of `versions.OPERATORS` are needed.

    Raises:
        CommandError: none of these has it; names what is missing.
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
    """Return the first of the user's folders that has exactly these versions."""
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


URL_VARIABLE: Final = "RACKGATE_BINARIES_URL"
SHA256_VARIABLE: Final = "RACKGATE_BINARIES_SHA256"

_CONNECT_LIMIT_S: Final = 5.0
_CHUNK_BYTES: Final = 1 << 20
_SUM_LINE: Final = re.compile(r"^([0-9a-fA-F]{64})\s+\*?(\S+)$")


@dataclass(frozen=True)
class DownloadSource:
    """A download of programs as `<base_url>/<name>`.

    Attributes:
        base_url: http, https or file URL of a folder.
        sums: SHA-256 in hex by file name.
    """

    base_url: str
    sums: dict[str, str]


def download_source(base_url: str | None, sums_file: str | None) -> DownloadSource | None:
    """Return the download that arguments or environment name, None for none.

    Raises:
        CommandError: the URL or the checksums are missing or malformed.
    """
    base_url = base_url or os.environ.get(URL_VARIABLE)
    sums_file = sums_file or os.environ.get(SHA256_VARIABLE)
    if not base_url and not sums_file:
        return None
    if not base_url or not sums_file:
        raise CommandError(
            f"a download needs both {URL_VARIABLE} (base URL) and {SHA256_VARIABLE} "
            '(file of lines "<sha256>  <name>")'
        )
    scheme = urllib.parse.urlsplit(base_url).scheme
    if scheme not in ("http", "https", "file"):
        raise CommandError(f'{URL_VARIABLE}: "{base_url}" is not an http, https or file URL')
    return DownloadSource(base_url.rstrip("/"), _read_sums(Path(sums_file).expanduser()))


def _read_sums(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise CommandError(f"{SHA256_VARIABLE}: cannot read {path}: {error.strerror}") from error
    found = [_SUM_LINE.match(line.strip()) for line in lines if line.strip()]
    if not found or None in found:
        raise CommandError(f'{SHA256_VARIABLE}: {path} must hold lines "<sha256>  <name>"')
    return {match.group(2): match.group(1).lower() for match in found if match}


def download(
    source: DownloadSource, binaries: Sequence[Binary], scratch: Path, progress: Progress
) -> None:
    """Fetch programs and their manifests into `scratch`; make the programs executable.

    Raises:
        CommandError: a checksum is missing or differs, or the download fails.
    """
    for name in (name for binary in binaries for name in binary.file_names):
        expected = source.sums.get(name)
        if expected is None:
            raise CommandError(f"the file of checksums has no line for {name}")
        url = f"{source.base_url}/{name}"
        with progress.step(f"downloading {url}"):
            found = _fetch(url, scratch / name)
        if found != expected:
            raise CommandError(f"{url}: SHA-256 is {found}, expected {expected}")
        (scratch / name).chmod(0o755)


def _fetch(url: str, target: Path) -> str:
    digest = hashlib.sha256()
    try:
        with (
            urllib.request.urlopen(url, timeout=_CONNECT_LIMIT_S) as answer,  # noqa: S310 # http(s) only
            target.open("wb") as file,
        ):
            while chunk := answer.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise CommandError(f"cannot download {url}: {reason}") from error
    return digest.hexdigest()
