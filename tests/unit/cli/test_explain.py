"""`rackgate explain`: what it prints, what it takes, and what it does not let through."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import pytest
import yaml

from rackgate_assigner.explain.explanation import (
    DomainCapacity,
    Exclusion,
    Explanation,
    FlavorView,
    Holder,
    LevelCapacity,
    NotRunningPods,
    PodSetStatus,
    QueuePosition,
    QuotaLine,
    Remedy,
    ResourceCapacity,
)
from rackgate_cli.__main__ import main
from rackgate_cli.cluster.target import cluster_target
from rackgate_cli.errors import UsageError
from rackgate_cli.explain import command as verb
from rackgate_cli.explain.view import blocks
from rackgate_cli.tables import Block, Grid, Heading, Line, clean, plain, show
from tests.support.objects import job

HOSTILE = "a\x1b[2J\nb\u202ec\u200b[red]d\u2028"


def view(name: str = "b1") -> FlavorView:
    cpu = ResourceCapacity(
        resource="cpu", per_pod="4", wanted="20", free="16", pods=4, missing="4", stranded="0"
    )
    best = DomainCapacity(
        domain=(name, "r2"),
        pods=4,
        pods_when_empty=4,
        slices=4,
        nodes=2,
        usable_nodes=1,
        tightest="cpu",
        fragmented=False,
        resources=(cpu,),
        holders=(Holder(kind="Workload", name="team/big", pods=3, amounts={"cpu": "12"}),),
        more_holders=2,
    )
    return FlavorView(
        flavor="tas",
        topology="default",
        level_keys=("block", "example.com/rack"),
        nodes=8,
        podsets=("main",),
        refused=("main",),
        asked="required example.com/rack",
        fitting=4,
        wanted=5,
        levels=(
            LevelCapacity(
                level="block", asked=False, domains=2, pods=15, best=(best,), fragmented=False
            ),
            LevelCapacity(
                level="example.com/rack",
                asked=True,
                domains=4,
                pods=15,
                best=(best,),
                fragmented=True,
            ),
        ),
        excluded=(Exclusion(rule="taint", detail="k=v:NoSchedule", nodes=3, names=(name,)),),
    )


def refused(name: str = "b1") -> Explanation:
    return Explanation(
        workload="team/w",
        job="team/train",
        state="waiting",
        summary="No rack holds all 5 pods.",
        fits=False,
        reason="TopologyPlacementFailed",
        message=name,
        changes=(Remedy(kind="fewerPods", value="4", when="now", text="ask for 4 pods"),),
        flavors=(view(name),),
        quota=(
            QuotaLine(
                flavor="tas",
                resource="cpu",
                requested="20",
                nominal="1k",
                used="48",
                available="952",
                missing="0",
                never=False,
            ),
        ),
        queue=QueuePosition(
            local_queue="team/lq",
            cluster_queue="cq",
            strategy="BestEffortFIFO",
            position=1,
            waiting=3,
        ),
    )


def test_the_plain_form_reads_from_the_answer_to_the_details() -> None:
    assert (
        plain(blocks(refused()))
        == """\
team/w: pending, of Job team/train
No rack holds all 5 pods.

reason   TopologyPlacementFailed
message  b1

WHAT WOULD HELP (each alone)
now  ask for 4 pods

TOPOLOGY default (flavor tas)
levels                    block, example.com/rack
nodes                     8
requested                 required example.com/rack, by main
fits                      4 of 5 pods
fits on an empty cluster  no

LEVELS
LEVEL                         DOMAINS  FITTING PODS  BEST DOMAIN  FITS  FITS IF EMPTY
block                         2        15            b1/r2        4     4
example.com/rack (requested)  4        15            b1/r2        4     4

BEST of example.com/rack
DOMAIN  FITS  USABLE NODES  TIGHTEST  LACKS                  USED BY
b1/r2   4     1 of 2        cpu       4 cpu (16 of 20 free)  team/big (3 pods, 12 cpu); 2 more

EXCLUDED NODES
NODES  REASON  DETAIL          EXAMPLES
3      taint   k=v:NoSchedule  b1, ...

QUOTA
FLAVOR  RESOURCE  REQUESTED  IN USE    MISSING  PROBLEM  USED BY
tas     cpu       20         48 of 1k  -                 -

QUEUE
LocalQueue    team/lq
ClusterQueue  cq (BestEffortFIFO)
position      2 of 3 pending
"""
    )


def test_levels_can_be_chosen_by_the_last_part_of_their_key() -> None:
    text = plain(blocks(refused(), ("rack",)))
    assert "BEST of example.com/rack" in text
    assert "block  " not in text
    assert "BEST of block" in plain(blocks(refused(), ("block",)))
    assert "has no level row, zone\n" in plain(blocks(refused(), ("rack", "row", "zone")))


def test_pods_that_do_not_run_are_reported_with_the_reason() -> None:
    run = PodSetStatus(
        podset="main",
        flavors={"cpu": "tas"},
        granted=9,
        running=5,
        held=(
            NotRunningPods(why="gated: the ungater has not released it", pods=3, names=("p-1",)),
        ),
        missing=1,
        broken_nodes=("x1 (gone)",),
    )
    found = Explanation(
        workload="team/w", state="admitted", summary="It is admitted.", podsets=(run,)
    )
    text = plain(blocks(found))
    assert "not running     3 gated: the ungater has not released it (p-1, ...)" in text
    assert "unhealthy node  x1 (gone)" in text
    assert "missing         1 not created yet by their controller" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_names_cannot_steer_the_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    out = Screen()
    show(blocks(refused(HOSTILE)), out)
    text = out.getvalue()
    assert "\x1b[2J" not in text
    assert not any(char in text for char in "\u202e\u200b\u2028")
    assert "a\\x1b[2J\\nb\\u202ec\\u200b[red]d\\u2028" in text


def test_a_terminal_gets_colour_unless_it_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, bare = Screen(), Screen()
    shown: list[Block] = [Heading("H"), Line("l", "red"), Grid(("A",), [("b",)]), Grid((), [])]
    show(shown, coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    show(shown, bare)
    assert "\x1b[31m" in coloured.getvalue()
    assert "\x1b[31m" not in bare.getvalue()


def test_a_huge_cell_is_cut() -> None:
    assert len(clean("x" * 10_000)) == 512
    assert clean("größe 機") == "größe 機"


def test_the_verb_explains_itself_and_its_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(word in text for word in ("examples:", "exit codes:", "--json", "-f FILE", "--top"))
    assert max(map(len, text.splitlines())) <= 100


def test_the_schema_is_printed_without_any_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--schema"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["$ref"] == "#/$defs/Explanation"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["explain"], "specify a Workload, its job"),
        (["explain", ""], "write NAME, KIND/NAME or NAMESPACE/NAME"),
        (["explain", "team/"], "write NAME, KIND/NAME or NAMESPACE/NAME"),
        (["explain", "a/b/c"], "write NAME, KIND/NAME or NAMESPACE/NAME"),
        (
            ["explain", "w", "--state", "/nonexistent", "--context", "c"],
            "cannot be used with --state",
        ),
        (["explain", "-f", "/nonexistent/job.yaml"], "cannot be read"),
        (["explain", "w", "--kubeconfig", "/nonexistent/config"], "cannot read"),
        (["explain", "a/w", "-n", "b", "--kubeconfig", "/nonexistent"], "cannot read"),
        (["explain", "w", "--config", "/nonexistent/assigner.yaml"], "assigner.yaml"),
    ],
)
def test_bad_input_ends_with_code_2_and_says_why(
    line: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("top", ["0", "many", "100000"])
def test_a_bad_number_is_rejected(top: str) -> None:
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["explain", "w", "--top", top])


# Which cluster.


def kubeconfig(path: Path, namespace: str = "mine") -> Path:
    context = {"name": "c", "context": {"cluster": "x", "user": "u", "namespace": namespace}}
    path.write_text(yaml.safe_dump({"current-context": "c", "contexts": [context]}))
    return path


def test_the_cluster_is_what_the_line_names_then_the_environment_then_the_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("KUBECONFIG", "RACKGATE_STATE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="no cluster is configured"):
        cluster_target(None, None, None)
    (tmp_path / ".kube").mkdir()
    usual = kubeconfig(tmp_path / ".kube" / "config", "usual")
    assert cluster_target(None, None, None).namespace == "usual"
    monkeypatch.setenv("RACKGATE_STATE", str(tmp_path / "play"))
    assert cluster_target(None, None, None).settings is None
    listed = kubeconfig(tmp_path / "listed", "listed")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{listed}")
    assert cluster_target(None, None, None).namespace == "listed"
    assert cluster_target(None, str(usual), None).namespace == "usual"
    assert cluster_target("here", None, None).state == "here"


def test_a_cluster_is_reported_by_address_context_and_file_as_far_as_the_file_says(
    tmp_path: Path,
) -> None:
    path = kubeconfig(tmp_path / "config")
    assert (
        cluster_target(None, str(path), None).description == f"its API server, context c of {path}"
    )
    document = yaml.safe_load(path.read_text())
    document["clusters"] = [{"name": "x", "cluster": {"server": "https://production:6443"}}]
    document["contexts"].append({"name": "d", "context": {"cluster": "x"}})
    path.write_text(yaml.safe_dump(document))
    assert (
        cluster_target(None, str(path), "d").description
        == f"https://production:6443, context d of {path}"
    )
    assert cluster_target(str(tmp_path), None, None).description == f"the playground in {tmp_path}"


def test_without_a_cluster_a_manifest_is_not_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("KUBECONFIG", "RACKGATE_STATE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job("train", 1)))
    assert main(["explain", "-f", str(file)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "no cluster is configured: use --kubeconfig FILE or --state DIR" in said
    assert "-f needs a cluster, which checks the manifest and says whether it fits" in said


@pytest.mark.parametrize("text", ["[", "", "contexts: 3", "a: b", "contexts: [{name: c}]"])
def test_a_kubeconfig_that_says_no_namespace_means_default(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    assert cluster_target(None, str(path), None).namespace == "default"
