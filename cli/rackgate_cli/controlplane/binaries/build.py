"""Builds the control plane's binaries from pinned Go modules; go.sum has the checksums."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rackgate_cli.controlplane.binaries.versions import Binary
from rackgate_cli.controlplane.processes import log_tail
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.errors import CommandError

BUILD_LIMIT_S: Final = 3600.0
LIST_LIMIT_S: Final = 60.0
_MODULE_FILES: Final = ("go.mod", "go.sum", "tools.go")


def cache_key(module: Path, binaries: Sequence[Binary]) -> str:
    """Return the cache folder's name: module, version and a hash of all inputs."""
    digest = hashlib.sha256()
    for name in _MODULE_FILES:
        digest.update((module / name).read_bytes())
    for binary in binaries:
        digest.update(repr((binary.name, binary.package, binary.ldflags)).encode())
        if binary.files:
            digest.update(repr((binary.source, binary.files)).encode())
    return f"{module.name}-{binaries[0].version}-{digest.hexdigest()[:16]}"


def build(
    module: Path, binaries: Sequence[Binary], target: Path, cache: Path, progress: Progress
) -> None:
    """Build the programs of one module into `target`; builds of one target run one at a time.

    Args:
        module: folder with go.mod and go.sum.
        binaries: programs of that module.
        target: folder, created atomically.
        cache: parent of locks, logs and unfinished builds; on the same file system as `target`.
        progress: prints what is built.

    Raises:
        CommandError: Go is missing, or the build failed or took too long.
    """
    go = shutil.which("go")
    if go is None:
        names = ", ".join(binary.name for binary in binaries)
        raise CommandError(
            f"no {names} {binaries[0].version} and no Go to build it: put matching programs into "
            "the folder KUBEBUILDER_ASSETS or on PATH, name a download with RACKGATE_BINARIES_URL "
            "and RACKGATE_BINARIES_SHA256, or install Go (go.dev)"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with locked(target, progress):
        if target.is_dir():
            return
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=cache))
        try:
            for binary in binaries:
                with progress.step(f"building {binary.name} {binary.version} with Go"):
                    _build_one(go, module, binary, scratch, cache / f"build-{binary.name}.log")
                if binary.manifests is not None:
                    text = _manifests(go, module, binary)
                    (scratch / binary.manifests).write_text(text)
            scratch.chmod(0o755)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def locked(target: Path, progress: Progress) -> Iterator[None]:
    """Let one process at a time create the cache folder `target`; others wait."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.step(f"waiting for another build of {target.name}"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _environment() -> dict[str, str]:
    # A go.work file or flags of the user must not change the result.
    return {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}


def _manifests(go: str, module: Path, binary: Binary) -> str:
    """Return the manifests of a program's Go module, which the build has fetched.

    Returns:
        A JSON list of objects, because YAML of this size takes seconds to read.

    Raises:
        CommandError: the module is not in the folder that Go reports, or has no such files.
    """
    import yaml  # slow to import, and only a build needs it

    # libyaml is ten times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    done = subprocess.run(
        [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", binary.source],
        cwd=module,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIST_LIMIT_S,
        check=False,
    )
    source = Path(done.stdout.strip())
    documents: list[object] = []
    for pattern in binary.files:
        found = sorted(source.glob(pattern)) if done.returncode == 0 else []
        if not found:
            raise CommandError(
                f'{binary.source} {binary.version} has no file "{pattern}" '
                f"(folder: {done.stdout.strip() or done.stderr.strip()})"
            )
        for path in found:
            documents += [entry for entry in yaml.load_all(path.read_text(), loader) if entry]
    return json.dumps(documents)


def _build_one(go: str, module: Path, binary: Binary, scratch: Path, log: Path) -> None:
    command = [
        go,
        "build",
        "-mod=readonly",
        "-trimpath",
        "-ldflags",
        " ".join(("-s", "-w", *binary.ldflags)),
        "-o",
        str(scratch / binary.name),
        binary.package,
    ]
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=module,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=BUILD_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandError(
                f"building {binary.name} took more than {BUILD_LIMIT_S:.0f} s; log: {log}"
            ) from error
    if done.returncode != 0:
        raise CommandError(
            f"building {binary.name} {binary.version} failed (exit code {done.returncode}), "
            f"log {log}:\n{log_tail(log)}"
        )
