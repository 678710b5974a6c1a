"""Binaries from a base URL that the user names, accepted only by their SHA-256."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rackgate_cli.controlplane.binaries.versions import Binary
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.errors import CommandError

URL_VARIABLE: Final = "RACKGATE_BINARIES_URL"
SHA256_VARIABLE: Final = "RACKGATE_BINARIES_SHA256"

_CONNECT_LIMIT_S: Final = 5.0
_CHUNK_BYTES: Final = 1 << 20
_SUM_LINE: Final = re.compile(r"^([0-9a-fA-F]{64})\s+\*?(\S+)$")


@dataclass(frozen=True)
class DownloadSource:
    """Where the programs lie: `<base_url>/<name>`, and the checksums of each by its name.

    Attributes:
        base_url: http, https or file URL of a folder.
        sums: SHA-256 in hex by file name.
    """

    base_url: str
    sums: dict[str, str]


def download_source(base_url: str | None, sums_file: str | None) -> DownloadSource | None:
    """Return the download the user named by arguments or environment, None if there is none.

    Raises:
        CommandError: one of the two is missing, or the file of checksums cannot be read.
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
        raise CommandError(f'{URL_VARIABLE}: "{base_url}" is no http, https or file URL')
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
        CommandError: no checksum for a file, no answer, or another content than promised.
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
