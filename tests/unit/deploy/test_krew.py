"""The krew plugin: its manifest and its archive."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
KREW = ROOT / "scripts" / "krew"
URL = "https://files.example.com/rackgate"


def test_the_manifest_names_the_archive_and_its_checksum(tmp_path: Path) -> None:
    wheel = tmp_path / "rackgate-1.2.3-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    out = tmp_path / "out"
    subprocess.run([KREW, wheel, f"{URL}/", out], check=True, capture_output=True)
    manifest = yaml.safe_load((out / "rackgate.yaml").read_text())
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("Plugin", "rackgate")
    spec = manifest["spec"]
    assert spec["version"] == "v1.2.3"
    assert len(spec["shortDescription"]) <= 50
    (platform,) = spec["platforms"]
    archive = out / "rackgate-1.2.3.tar.gz"
    assert platform["uri"] == f"{URL}/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as packed:
        names = {Path(one.name).name: one for one in packed.getmembers()}
    assert {wheel.name, "runtime.lock", "VERSION", platform["bin"]} <= set(names)
    assert names[platform["bin"]].mode == 0o755
    before = archive.read_bytes()
    subprocess.run([KREW, wheel, URL, out], check=True, capture_output=True)
    assert archive.read_bytes() == before


@pytest.mark.parametrize("words", [[], ["other-1.whl", URL, "out"]])
def test_wrong_words_are_reported(words: list[str], tmp_path: Path) -> None:
    ran = subprocess.run([KREW, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode in (1, 2)
    assert "usage" in ran.stderr or "is not a wheel" in ran.stderr
    assert list(tmp_path.iterdir()) == []
