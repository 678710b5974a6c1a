"""Which Python `scripts/venv` makes .venv with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = str(ROOT / "scripts" / "venv")


def python(folder: Path, says: str, *, code: int = 0) -> Path:
    """A `python3` that answers to the measurement, and writes down what else it is asked."""
    folder.mkdir(parents=True)
    program = folder / "python3"
    program.write_text(
        "#!/bin/bash\n"
        f'if [ "$1" = -c ]; then echo "{says.format(program)}"; exit {code}; fi\n'
        f'[ "$1" = -V ] || echo "$0 $*" >> asked\n'
    )
    program.chmod(0o755)
    return program


def make(where: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script in a folder."""
    return subprocess.run(
        ["/bin/bash", SCRIPT, *arguments],
        cwd=where,
        env={"PATH": path or str(where / "none")},
        capture_output=True,
        text=True,
        check=False,
    )


def asked(where: Path) -> list[str]:
    """What the Pythons were asked beside the measurement."""
    file = where / "asked"
    return file.read_text().splitlines() if file.exists() else []


def test_a_much_faster_python_on_the_path_is_used(tmp_path: Path) -> None:
    slow = python(tmp_path / "slow", "9000 {}")
    fast = python(tmp_path / "fast", "6000 {}")
    done = make(tmp_path, path=f"{slow.parent}:{fast.parent}")
    assert done.returncode == 0, done.stderr
    assert asked(tmp_path) == [f"{fast} -m venv --clear .venv"]
    assert str(fast) in done.stdout


def test_the_first_one_is_used_where_another_is_hardly_faster(tmp_path: Path) -> None:
    first = python(tmp_path / "first", "9000 {}")
    second = python(tmp_path / "second", "8000 {}")
    assert make(tmp_path, path=f"{first.parent}:{second.parent}").returncode == 0
    assert asked(tmp_path) == [f"{first} -m venv --clear .venv"]


def test_a_named_one_is_used_even_if_it_is_slow(tmp_path: Path) -> None:
    named = python(tmp_path / "named", "9000 {}")
    fast = python(tmp_path / "fast", "1000 {}")
    assert make(tmp_path, str(named), path=str(fast.parent)).returncode == 0
    assert asked(tmp_path) == [f"{named} -m venv --clear .venv"]


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = python(tmp_path / "old", "it is Python 3.9.2", code=1)
    new = python(tmp_path / "new", "9000 {}")
    assert make(tmp_path, path=f"{old.parent}:{new.parent}").returncode == 0
    assert asked(tmp_path) == [f"{new} -m venv --clear .venv"]


def test_without_one_each_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    old = python(tmp_path / "old", "it is Python 3.9.2", code=1)
    done = make(tmp_path, path=str(old.parent))
    assert done.returncode == 1
    assert f"{old}: it is Python 3.9.2" in done.stderr
    assert "make setup PYTHON=" in done.stderr
    done = make(tmp_path)
    assert done.returncode == 1
    assert "there is no python3 on the PATH" in done.stderr
    assert asked(tmp_path) == []


def test_a_real_python_is_measured_and_makes_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    done = make(tmp_path, path=str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv" / "bin" / "pip").exists()
