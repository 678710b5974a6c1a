"""Images by digest: what is pinned is well formed, and `scripts/pin` pins what a registry holds."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir

ROOT = Path(__file__).resolve().parents[3]
DIGEST = "sha256:" + "0123456789abcdef" * 4
PINNED = re.compile(r"@sha256:[0-9a-f]{64}\Z")
# A repository, then a tag (never `latest`) or a digest.
REFERENCE = re.compile(r"[a-z0-9./:_-]+(:(?!latest\Z)[\w.-]+|@sha256:[0-9a-f]{64})\Z")


def images() -> dict[str, str]:
    """Every image that the Deployments and docker-compose.yaml name, by where it stands."""
    found = {}
    for entry in install.documents(deploy_dir() / "services"):
        if entry["kind"] == "Deployment":
            (container,) = entry["spec"]["template"]["spec"]["containers"]
            found[entry["metadata"]["name"]] = container["image"]
    compose = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
    return found | {f"compose {name}": one["image"] for name, one in compose["services"].items()}


def test_every_image_has_a_tag_of_its_own_or_a_whole_digest() -> None:
    wrong = {name: image for name, image in images().items() if not REFERENCE.match(image)}
    assert wrong == {}
    half = {n: image for n, image in images().items() if "@" in image and not PINNED.search(image)}
    assert half == {}


def test_all_stages_of_the_image_come_from_the_one_base_that_can_be_pinned() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    stages = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert stages == ["${BASE}", "${BASE}"]
    (base,) = (line.removeprefix("ARG BASE=") for line in lines if line.startswith("ARG BASE="))
    (python,) = (line.removeprefix("ARG PYTHON=") for line in lines if line.startswith("ARG PYT"))
    assert REFERENCE.match(base.replace("${PYTHON}", python))
    assert lines.index(f"ARG BASE={base}") < lines.index("FROM ${BASE} AS build")


def pin(folder: Path, held: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/pin where docker knows these references of the image."""
    docker = folder / "docker"
    docker.write_text(f"#!/bin/sh\nprintf '%s\\n' '{held}'\n")
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    return subprocess.run(
        [str(ROOT / "scripts" / "pin"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "DOCKER": str(docker)},
    )


@pytest.mark.parametrize(
    ("held", "image", "name"),
    [
        (
            "registry.example/rackgate",
            "registry.example/rackgate:0.1.0",
            "registry.example/rackgate",
        ),
        ("localhost:5000/rackgate", "localhost:5000/rackgate:0.1.0", "localhost:5000/rackgate"),
        ("localhost:5000/rackgate", "localhost:5000/rackgate", "localhost:5000/rackgate"),
        ("docker.io/library/python", "python:3.13-slim", "python"),
    ],
)
def test_what_a_registry_holds_is_pinned_by_its_digest(
    tmp_path: Path, held: str, image: str, name: str
) -> None:
    other = f"elsewhere.example/rackgate@sha256:{'f' * 64}"
    done = pin(tmp_path, f"{other}\n{held}@{DIGEST}", image)
    assert done.returncode == 0, done.stderr
    entry = {"name": "rackgate", "newName": name, "digest": DIGEST}
    assert yaml.safe_load(done.stdout) == {"images": [entry]}
    alone = pin(tmp_path, f"{held}@{DIGEST}", "--reference", image)
    assert alone.stdout == f"{name}@{DIGEST}\n"


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ("", "has no digest of a registry yet"),
        (f"elsewhere.example/rackgate@{DIGEST}", "has no digest of a registry yet"),
        ("registry.example/rackgate@sha256:abc", "not a digest: sha256:abc"),
    ],
)
def test_no_digest_is_invented(tmp_path: Path, held: str, words: str) -> None:
    done = pin(tmp_path, held, "registry.example/rackgate:0.1.0")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
