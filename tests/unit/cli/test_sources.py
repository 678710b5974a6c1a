"""Where programs come from. The programs here are scripts that report a version."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackgate_cli.controlplane.binaries import build as building
from rackgate_cli.controlplane.binaries.find import DownloadSource, download_source, find_binaries
from rackgate_cli.controlplane.binaries.versions import BINARIES, Binary
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.errors import CommandError
from rackgate_cli.locations import deploy_dir

MANIFESTS = deploy_dir() / "controlplane"
QUIET = Progress(quiet=True)
# A build is one line in the log and a file under the name after -o.
FAKE_GO = """#!/bin/sh
echo "$@" >> "$GO_CALLS"
while [ "$1" != "-o" ]; do shift; done
sleep 0.02
echo "#!/bin/sh" > "$2"
"""
FAILING_GO = "#!/bin/sh\necho 'no required module provides package' >&2\nexit 1\n"


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def program(binary: Binary, version: str | None = None) -> str:
    return f"#!/bin/sh\necho '{binary.name} {version or binary.version}'\n"


def fill(folder: Path, **versions: str) -> Path:
    for binary in BINARIES:
        version = versions.get(binary.name.replace("-", "_"))
        write_program(folder / binary.name, program(binary, version))
    return folder


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No programs and no Go, but a shell for the scripts."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "sleep"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    for name in ("KUBEBUILDER_ASSETS", "RACKGATE_BINARIES_URL", "RACKGATE_BINARIES_SHA256"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go that records its calls; returns the record."""
    calls = tmp_path / "calls"
    calls.touch()
    write_program(tmp_path / "tools" / "go", FAKE_GO)
    monkeypatch.setenv("GO_CALLS", str(calls))
    return calls


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DownloadSource]:
    """Programs of the right versions behind HTTP on loopback, with their checksums."""
    folder = fill(tmp_path / "published")
    handler = functools.partial(_QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        sums = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()
        }
        yield DownloadSource(f"http://127.0.0.1:{running.server_port}", sums)
        running.shutdown()
        thread.join()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        return


def test_a_folder_with_exactly_these_versions_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(fill(tmp_path / "assets")))
    found = find_binaries(MANIFESTS, tmp_path / "cache", QUIET)
    assert {path.parent for path in found.values()} == {tmp_path / "assets"}
    assert sorted(found) == sorted(binary.name for binary in BINARIES)


def test_programs_on_the_path_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert find_binaries(MANIFESTS, tmp_path / "cache", QUIET)["kwok"] == folder / "kwok"


def test_another_version_in_a_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: Path
) -> None:
    assets = fill(tmp_path / "assets", kube_scheduler="v1.36.2")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    found = find_binaries(MANIFESTS, tmp_path / "cache", QUIET)
    assert found["etcd"].parent == assets
    assert found["kube-apiserver"].parent != assets, "one module comes from one place"
    assert "k8s.io/kubernetes/cmd/kube-scheduler" in go.read_text()


def test_what_was_built_once_is_found_without_go(tmp_path: Path, go: Path) -> None:
    first = find_binaries(MANIFESTS, tmp_path / "cache", QUIET)
    assert len(go.read_text().splitlines()) == len(BINARIES)
    (tmp_path / "tools" / "go").unlink()
    assert find_binaries(MANIFESTS, tmp_path / "cache", QUIET) == first


def test_builds_are_pinned_and_carry_their_version(tmp_path: Path, go: Path) -> None:
    find_binaries(MANIFESTS, tmp_path / "cache", QUIET)
    for line in go.read_text().splitlines():
        assert line.startswith("build -mod=readonly -trimpath -ldflags")
    assert "version.gitVersion=v1.36.3" in go.read_text()


def test_two_builds_at_a_time_build_once(tmp_path: Path, go: Path) -> None:
    threads = [
        threading.Thread(target=find_binaries, args=(MANIFESTS, tmp_path / "cache", QUIET))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(go.read_text().splitlines()) == len(BINARIES)


def test_another_pinned_module_has_another_place_in_the_cache(tmp_path: Path) -> None:
    module = tmp_path / "etcd"
    module.mkdir()
    for name in ("go.mod", "go.sum", "tools.go"):
        (module / name).write_bytes((MANIFESTS / "etcd" / name).read_bytes())
    before = building.cache_key(module, BINARIES[:1])
    assert before == building.cache_key(MANIFESTS / "etcd", BINARIES[:1])
    (module / "go.sum").write_text("changed")
    assert building.cache_key(module, BINARIES[:1]) != before


def test_a_failed_build_shows_its_log_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write_program(tmp_path / "tools" / "go", FAILING_GO)
    with pytest.raises(
        CommandError, match=r"building etcd v3\.6\.8 failed.*\n.*no required module"
    ):
        find_binaries(MANIFESTS, tmp_path / "cache", QUIET)
    left = [path.name for path in (tmp_path / "cache" / "bin").iterdir() if path.is_dir()]
    assert left == []


def test_without_programs_and_go_the_error_names_both(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"no etcd v3\.6\.8 and no Go to build it"):
        find_binaries(MANIFESTS, tmp_path / "cache", QUIET)


def test_a_named_download_fills_the_cache(tmp_path: Path, server: DownloadSource) -> None:
    found = find_binaries(MANIFESTS, tmp_path / "cache", QUIET, server)
    assert all(os.access(path, os.X_OK) for path in found.values())
    assert find_binaries(MANIFESTS, tmp_path / "cache", QUIET) == found


def test_a_download_of_other_content_is_rejected(tmp_path: Path, server: DownloadSource) -> None:
    server.sums["etcd"] = "0" * 64
    with pytest.raises(CommandError, match=r"/etcd: SHA-256 is [0-9a-f]{64}, expected 0{64}"):
        find_binaries(MANIFESTS, tmp_path / "cache", QUIET, server)
    left = [path for path in (tmp_path / "cache" / "bin").iterdir() if path.is_dir()]
    assert left == []


def test_a_download_of_another_version_is_rejected(tmp_path: Path, server: DownloadSource) -> None:
    other = program(BINARIES[0], "v3.5.0")
    write_program(tmp_path / "published" / "etcd", other)
    server.sums["etcd"] = hashlib.sha256(other.encode()).hexdigest()
    with pytest.raises(CommandError, match=r"downloaded etcd reports version v3\.5\.0"):
        find_binaries(MANIFESTS, tmp_path / "cache", QUIET, server)


def test_a_download_that_no_one_serves_is_named(tmp_path: Path, server: DownloadSource) -> None:
    (tmp_path / "published" / "kwok").unlink()
    with pytest.raises(CommandError, match=r"cannot download http://127\.0\.0\.1:\d+/kwok"):
        find_binaries(MANIFESTS, tmp_path / "cache", QUIET, server)


def test_a_download_needs_url_and_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    assert download_source(None, None) is None
    monkeypatch.setenv("RACKGATE_BINARIES_URL", "https://example.org/bin")
    with pytest.raises(CommandError, match="RACKGATE_BINARIES_SHA256"):
        download_source(None, None)


def test_a_file_of_checksums_is_read(tmp_path: Path) -> None:
    sums = tmp_path / "SHA256SUMS"
    sums.write_text(f"{'A' * 64}  etcd\n{'b' * 64} *kwok\n")
    source = download_source("https://example.org/bin/", str(sums))
    assert source == DownloadSource("https://example.org/bin", {"etcd": "a" * 64, "kwok": "b" * 64})
    sums.write_text("etcd\n")
    with pytest.raises(CommandError, match="must hold lines"):
        download_source("https://example.org/bin/", str(sums))
