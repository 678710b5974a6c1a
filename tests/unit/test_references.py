"""What code, tests and documents cite exists: ids, sections, decisions, files and links."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.support.reference import REFERENCE, ROOT, conditions, events, keys
from tests.support.reference.behaviour import ledger

DOCS: Final = ROOT / "docs"
SOURCES: Final = ("shared", "services", "cli", "osmo", "invariants", "bench", "tests", "deploy")
TEXTS: Final = (".py", ".md", ".yaml", ".toml", ".tmpl")
HERE: Final = Path(__file__)
# Ids of this form that are no rows of the ledger: proposals, encodings, digests and names.
OTHER_PREFIXES: Final = frozenset({"KEP", "UTF", "SHA"})
FIELD_NOTE: Final = re.compile(r"\b([UCPNEGW]\d{1,2})\b")
ROW: Final = re.compile(r"\b([A-Z]{2,4}-\d{2})\b")


@cache
def texts() -> Mapping[Path, str]:
    """Every text of the repository that cites something."""
    roots = (*ROOT.glob("*.md"), ROOT / "pyproject.toml", *(ROOT / ".github").glob("*.md"))
    found = [path for path in roots if path.exists()]
    for folder in (*SOURCES, "docs", "changelog.d"):
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS]
    return {path: path.read_text() for path in found if path != HERE}


def sources() -> Iterator[tuple[Path, str]]:
    """Those of them that are no documents."""
    return ((path, text) for path, text in texts().items() if DOCS not in path.parents)


def named(path: Path) -> str:
    """A path for messages."""
    return str(path.relative_to(ROOT))


# Field notes, choices and rows of the ledger.


@cache
def noted() -> frozenset[str]:
    """Ids of field notes and choices."""
    page = (REFERENCE / "field-notes.md").read_text()
    return frozenset(re.findall(r"^\| ([A-Z]+-?\d+) \|", page, re.MULTILINE))


def cited_notes(path: Path, text: str) -> Iterator[str]:
    """Ids of field notes: marks of tests, `(C2, N7)` in sources, `field note E1` in documents."""
    for arguments in re.findall(r"mark\.field_note\(([^)]*)\)", text):
        yield from re.findall(r'"([^"]+)"', arguments)
    for listed in re.findall(r"field notes? ([A-Z]\d+(?:(?:, | and )[A-Z]\d+)*)", text):
        yield from FIELD_NOTE.findall(listed)
    if (ROOT / "tests") in path.parents or path.suffix != ".py":
        return
    for listed in re.findall(r"\(([A-Z][A-Z0-9-]*\d(?:, [A-Z][A-Z0-9-]*\d)*)\)", text):
        yield from (entry for entry in listed.split(", ") if FIELD_NOTE.fullmatch(entry))


def test_every_field_note_that_is_cited_is_described() -> None:
    cited = {note for path, text in texts().items() for note in cited_notes(path, text)}
    assert len(cited) > 80
    assert sorted(cited - noted()) == []
    missing = {note for note in noted() if FIELD_NOTE.fullmatch(note)} - cited
    assert sorted(missing) == [], "described, and cited nowhere"


def test_every_choice_that_is_cited_is_described() -> None:
    cited = {c for _, text in texts().items() for c in re.findall(r"\bCH-\d+\b", text)}
    assert sorted(cited - noted()) == []


def test_every_row_of_the_ledger_that_is_cited_exists() -> None:
    rows = set(ledger())
    groups = {row.split("-")[0] for row in rows}
    unknown = {
        f"{named(path)}: {row}"
        for path, text in texts().items()
        for row in ROW.findall(text)
        if row.split("-")[0] not in OTHER_PREFIXES | {"CH"}
        and (row.split("-")[0] in groups)
        and row not in rows
    }
    assert sorted(unknown) == []


# Sections of the conformance texts.


def sections(page: str) -> frozenset[str]:
    """Numbers of the sections of a conformance text."""
    text = (REFERENCE / page).read_text()
    return frozenset(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", text, re.MULTILINE))


SECTIONS: Final = re.compile(
    r"\b[Ss]ections?\s+((?:\d+(?:\.\d+)?)(?:(?:,| and| to|,\s+and)\s+\d+(?:\.\d+)?)*"
    r"(?:\s\((?:[a-z ]+, )*\d+\.\d+(?:, \d+\.\d+)*\))?)"
)
# Where sections are those of another text: of an RFC, or of a page that its own line names.
FOREIGN: Final = re.compile(r"RFC|docs/|races/")


def test_every_section_that_is_cited_exists() -> None:
    texts_ = {"quota": sections("conformance-quota.md"), "tas": sections("conformance-topology.md")}
    assert all(len(found) > 12 for found in texts_.values())
    cited = 0
    unknown = []
    for path, text in sources():
        for match in SECTIONS.finditer(text):
            around = text[max(0, match.start() - 60) : match.end()]
            if FOREIGN.search(around):
                continue
            page = "quota" if "quota" in around else "tas"
            for number in re.findall(r"\d+(?:\.\d+)?", match[1]):
                cited += 1
                if number not in texts_[page]:
                    unknown.append(f"{named(path)}: {page}, section {number}")
    assert cited > 20
    assert unknown == []


def test_sections_that_the_conformance_texts_cite_are_their_own() -> None:
    for page in ("conformance-topology.md", "conformance-quota.md"):
        found = sections(page)
        for listed in SECTIONS.findall((REFERENCE / page).read_text()):
            assert set(re.findall(r"\d+(?:\.\d+)?", listed)) <= found, f"{page}: {listed}"


def test_rules_that_are_cited_by_their_names_are_in_the_conformance_text() -> None:
    text = (REFERENCE / "conformance-topology.md").read_text()
    for rule in ("order W", "order L", "`tight(", "leaderFirst("):
        assert rule in text


# Decisions, races, files and links.


def test_every_decision_that_is_cited_exists() -> None:
    numbers = {int(path.name[:4]) for path in DOCS.rglob("adr/[0-9]*.md")}
    assert len(numbers) > 30
    unknown = [
        f"{named(path)}: ADR {number}"
        for path, text in texts().items()
        for number in re.findall(r"\b(?:ADR|adr)[ /]#?(\d+)", text)
        if int(number) not in numbers
    ]
    assert unknown == []


def race_rows(page: str) -> list[str]:
    """Ids of the rows of a page of races, in their order."""
    found = next(iter(DOCS.rglob(f"races/{page}.md")))
    return re.findall(r"^\| ([A-Z]\d+[a-z]?) \|", found.read_text(), re.MULTILINE)


def test_every_race_that_a_test_cites_is_listed() -> None:
    cited = re.compile(
        r"races/([a-z-]+)\.md,?\s+(?:rows? )?([A-Z]\d+)(?:(?: to | and )([A-Z]\d+))?"
    )
    found = [match for _, text in texts().items() for match in cited.findall(text)]
    assert len(found) >= 4
    for page, *ids in found:
        assert {one for one in ids if one} <= set(race_rows(page)), page


@pytest.mark.parametrize("page", sorted(DOCS.rglob("races/*.md")), ids=lambda page: page.stem)
def test_a_page_of_races_cites_rows_that_are_listed(page: Path) -> None:
    rows = {row for other in page.parent.glob("*.md") for row in race_rows(other.stem)}
    text = re.sub(r"field notes? [A-Z]\d+", "", page.read_text())
    cited = set(re.findall(r"\b[Aa]s ([A-Z]\d+)\b", text))
    assert sorted(cited - rows) == []


FILE: Final = re.compile(
    r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|yaml|toml|tsv|json|gz))(?:::[\w\[\]-]+)?`"
)
# Files of other projects that documents name.
FOREIGN_FILES: Final = ("pkg/", "plugin/", "staging/", "api/", "config/")


@cache
def files() -> tuple[str, ...]:
    """Paths of the repository's files, with a slash in front."""
    folders = (*SOURCES, "docs", "requirements", "scripts", "changelog.d", ".github", ".ci")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return tuple(f"/{named(path)}" for path in found)


def test_every_file_that_a_document_names_exists() -> None:
    missing = []
    for path, text in texts().items():
        if path.suffix != ".md":
            continue
        for name in FILE.findall(text):
            if name.startswith(FOREIGN_FILES):
                continue
            if not any(file.endswith(f"/{name}") for file in files()):
                missing.append(f"{named(path)}: {name}")
    assert missing == []


def test_every_page_that_sources_name_exists() -> None:
    missing = [
        f"{named(path)}: {name}"
        for path, text in sources()
        for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|tsv)", text)
        if not (ROOT / name).exists()
    ]
    assert missing == []


def anchors(text: str) -> set[str]:
    """What a link may name in a page: its headings as GitHub writes them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        names.add(f"{slug}-{count}" if count else slug)
    return names


def links() -> Iterator[tuple[Path, str]]:
    """Links of documents that lead to other files of the repository, with the page they count from.

    Fragments of the changelog are part of CHANGELOG.md one day, so theirs count from the root.
    """
    for path, text in texts().items():
        if path.suffix != ".md":
            continue
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        prose = re.sub(r"`[^`\n]*`", "", prose)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if not re.match(r"[a-z]+:", target):
                yield (ROOT / "CHANGELOG.md" if path.parent.name == "changelog.d" else path), target


def test_every_link_leads_somewhere() -> None:
    broken = []
    for path, target in links():
        name, _, anchor = target.partition("#")
        page = (path.parent / name).resolve() if name else path
        if not page.exists():
            broken.append(f"{named(path)}: {target}")
        elif anchor and page.suffix == ".md" and anchor not in anchors(page.read_text()):
            broken.append(f"{named(path)}: {target}: no such heading")
    assert broken == []


# Tables of the generated pages.


def test_every_condition_and_reason_is_described() -> None:
    assert conditions.gaps() == []


def test_every_event_is_described() -> None:
    assert events.gaps() == []
    assert len(events.recorded()) > 25


def test_every_annotation_and_label_is_described() -> None:
    assert keys.gaps() == []
