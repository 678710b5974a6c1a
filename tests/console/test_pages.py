"""The page of the console in a real browser, against what the API server has."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, Route, expect

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate_console.rows import topology as topology_rows
from tests.console import pages
from tests.console.pages import (
    HOSTILE,
    MANIFEST,
    READY,
    VIEWS,
    WAITS_FOR,
    Site,
    site,
    workload,
)
from tests.support.apiserver import FakeApiServer, Object

pytestmark = pytest.mark.asyncio(loop_scope="module")

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()


# The page says that it is connected before it draws, and the map's size settles in the next frame.
DRAWN = """() => {
  const { view } = globalThis.rackgate ?? {};
  return Boolean(view) && (!view.facts || view.facts().leaves > 0);
}"""
TWO_FRAMES = """
  () => new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(() => next(true))))
"""


@asynccontextmanager
async def opened(
    browser: Browser, found: Site, state: str = "", *, width: int = 1440, **options: Any
) -> AsyncIterator[Page]:
    """A page that shows the console; it must not report any error."""
    context = await browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            errors.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    await page.goto(found.link(state))
    await page.wait_for_selector(READY)
    await page.wait_for_function(DRAWN)
    await page.evaluate(TWO_FRAMES)
    yield page
    await context.close()
    # The browser reports every answer that is no success; the page says what it means.
    assert [text for text in errors if "Failed to load resource" not in text] == []


async def facts(page: Page) -> dict[str, Any]:
    """What the canvas shows."""
    found: dict[str, Any] = await page.evaluate("() => globalThis.rackgate.view.facts()")
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440, 2560])
@pytest.mark.parametrize("view", VIEWS)
async def test_every_view_is_accessible_and_fits_its_width(
    shown: Site, browser: Browser, view: str, width: int, scheme: Any
) -> None:
    async with opened(
        browser, shown, VIEWS[view], width=width, color_scheme=scheme, bypass_csp=True
    ) as page:
        await page.wait_for_selector(WAITS_FOR.get(view, READY))
        await page.evaluate(AXE)
        found = await page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        assert [
            (one["id"], [node["html"][:200] for node in one["nodes"]])
            for one in found["violations"]
        ] == []
        assert await page.evaluate("() => document.documentElement.scrollWidth") <= width
        dark = await page.evaluate("() => document.documentElement.dataset.theme")
        assert dark == scheme


async def test_the_code_is_neither_in_the_url_nor_stored(shown: Site, browser: Browser) -> None:
    async with opened(browser, shown, "view=queues") as page:
        assert page.url == f"{shown.address}/#view=queues"
        kept = await page.evaluate(
            "() => [localStorage.length, sessionStorage.length, document.cookie]"
        )
        assert kept == [0, 0, ""]
        await page.reload()
        await page.wait_for_selector(READY)


async def test_without_a_code_the_page_asks_for_one(shown: Site, browser: Browser) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(shown.address + "/#view=pending")
    await page.get_by_label("Code").fill("wrong")
    await page.get_by_role("button", name="Open").click()
    await expect(page.get_by_role("alert")).to_contain_text("not valid")
    await page.get_by_label("Code").fill(shown.link().rpartition("=")[2])
    await page.get_by_role("button", name="Open").click()
    await page.wait_for_selector(READY)
    await expect(page.get_by_role("link", name="Job/eval-0")).to_be_visible()
    await context.close()


async def test_a_host_is_chosen_with_the_keyboard_and_shows_its_workload(
    shown: Site, browser: Browser
) -> None:
    async with opened(browser, shown) as page:
        await page.locator("canvas.map").focus()
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("ArrowRight")
        await page.wait_for_url(re.compile("host=node-00001"))
        side = page.locator(".side")
        await expect(side).to_contain_text("node-00001")
        await expect(side).to_contain_text("Job/train-0")
        await expect(side).to_contain_text(re.compile(r"1 pod of main, for \d+ d"))
        pod = shown.api.get(kinds.PODS, "job-train-0-0", "research")
        assert pod is not None
        assert pod["spec"]["nodeName"] == "node-00001"
        rank = pod["metadata"]["labels"][names.COMPLETION_INDEX_LABEL]
        bound = [f"rank {rank}: job-train-0-0, {pod['status']['phase']}"]
        await expect(side.locator(".pods li")).to_have_text(bound)
        reserved = shown.console.cache.workloads["research/job-train-0"].reserved
        assert reserved is not None
        assigned = reserved.podsets[0].topology
        assert assigned is not None
        assert (("node-00001",), 1) in assigned.domains
        await page.keyboard.press("Escape")
        await page.wait_for_url(re.compile(r"/#?$"))


async def test_the_pointer_shows_a_host_and_chooses_it(shown: Site, browser: Browser) -> None:
    async with opened(browser, shown) as page:
        at = await page.evaluate(
            """() => { const {map, placed} = globalThis.rackgate.view;
                 const cell = placed.leaves.findIndex((one) => one.name === "node-00002");
                 const box = map.canvas.getBoundingClientRect();
                 return [box.left + map.left + (placed.x[cell] + .4) * map.scale,
                         box.top + map.top + (placed.y[cell] + .4) * map.scale]; }"""
        )
        await page.mouse.move(*at)
        await expect(page.locator(".tip")).to_contain_text("node-00002")
        await expect(page.locator(".tip")).to_contain_text("8 of 8 in use")
        await page.mouse.click(*at)
        await page.wait_for_url(re.compile("host=node-00002"))


async def test_a_pending_workload_is_explained_on_the_map(shown: Site, browser: Browser) -> None:
    async with opened(browser, shown, "view=pending") as page:
        row = page.locator("tr", has_text="Job/eval-0")
        await expect(row).to_contain_text("allows to fit only 15 out of 16")
        await row.get_by_role("link", name="show on map").click()
        await page.wait_for_selector(".side .explanation")
        explanation = shown.console.explanation("vision/job-eval-0")
        assert explanation is not None
        (level,) = [one for one in explanation.flavors[0].levels if one.asked]
        drawn = (await facts(page))["outlines"]
        assert [tuple(one["path"]) for one in drawn] == [one.domain for one in level.best]
        assert drawn[0]["label"] == f"{level.best[0].pods} of 16 pods fit"
        await expect(page.locator(".side")).to_contain_text(explanation.changes[0].text)


async def test_search_shows_the_hosts_of_a_job(shown: Site, browser: Browser) -> None:
    async with opened(browser, shown) as page:
        await page.get_by_label("Find").fill("train-3")
        await expect(page.locator(".side")).to_contain_text("13 hosts match")
        assert "find=train-3" in page.url


async def test_a_pod_outside_its_assignment_is_red_and_has_a_sign(
    shown: Site, browser: Browser
) -> None:
    async with opened(browser, shown, "view=workload&w=research/job-train-0") as page:
        wrong = page.locator("tr.misplaced")
        await expect(wrong).to_have_count(1)
        await expect(wrong).to_contain_text("✗ wrong place")
        await expect(page.get_by_role("alert")).to_contain_text("1 pod runs outside")
        await expect(page.locator(".explanation")).to_contain_text("2 of 14 pods run")
        events = page.locator(".timeline li strong")
        assert await events.all_text_contents() == ["Created", "QuotaReserved", "Admitted"]


async def test_what_if_answers_and_writes_nothing(shown: Site, browser: Browser) -> None:
    before = len(shown.api.requests)
    async with opened(browser, shown, "view=what-if") as page:
        answer = page.locator(".answer")
        await page.get_by_role("textbox", name="Manifest").fill(MANIFEST % 16)
        await page.get_by_role("button", name="Ask").click()
        await expect(answer).to_contain_text("It does not fit")
        await expect(answer).to_contain_text("no single rack fits 16")
        await page.get_by_label("Empty cluster").check()
        await page.get_by_role("button", name="Ask").click()
        await expect(answer.get_by_role("heading", name="It fits")).to_be_visible()
        await page.get_by_label("Empty cluster").uncheck()
        await page.get_by_label("More nodes").fill("16")
        await page.get_by_role("button", name="Ask").click()
        await expect(answer).to_contain_text("what-if-0")
        await page.get_by_role("textbox", name="Manifest").fill("a: [")
        await page.get_by_role("button", name="Ask").click()
        await expect(answer.get_by_role("alert")).to_contain_text("not plain YAML")
        await page.locator("#f-file").set_input_files(
            {"name": "job.yaml", "mimeType": "text/yaml", "buffer": (MANIFEST % 2).encode()}
        )
        await expect(page.get_by_role("textbox", name="Manifest")).to_have_value(
            re.compile("parallelism: 2")
        )
    # Whoever asks for a Workload makes the console list its pods and Events; that is all.
    assert {seen.method for seen in shown.api.requests[before:]} <= {"GET"}


async def test_names_of_an_adversary_are_text(shown: Site, browser: Browser) -> None:
    for state in (
        "view=pending",
        "view=workload&w=speech/job-hostile",
        "view=workload&w=vision/job-eval-0",
    ):
        async with opened(browser, shown, state) as page:
            text = page.locator("bdi", has_text="onerror=").first
            await expect(text).to_be_visible()
            assert await text.text_content() == HOSTILE
            assert await page.locator("img[src=x]").count() == 0
            assert await page.title() != "1"


class Renaming(FakeApiServer):
    """Stores everything with other names, each with its own at the end."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = json.dumps(prefix)[1:-1]

    def put(self, resource: Resource, item: Object) -> Object:
        renamed = RENAMED.sub(lambda found: f'"{self._prefix}{found[1]}"', json.dumps(item))
        return super().put(resource, json.loads(renamed))


# Hosts and domains, flavors, queues, Cohorts, PodSets and pods. The page asks the API server for
# namespaces, Workloads and jobs by name, so these are names that it could have.
RENAMED = re.compile(r'"(node-\d+|block-\d+|rack-\d+|h100|main|all|Pending|job-train-0-\d+)"')


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("prefix", [HOSTILE, "x" * 52 + "-"], ids=["html", "long"])
async def test_names_of_every_object_are_text_and_fit(
    browser: Browser, prefix: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "FakeApiServer", partial(Renaming, prefix))
    async with site(hosts=32) as found:
        for view in ("map", "explained", "host", "queues", "pending", "workload", "pods"):
            state = VIEWS[view].replace("node-00003", quote(f"{prefix}node-00003"))
            async with opened(browser, found, state, width=width) as page:
                if wanted := WAITS_FOR.get(view):
                    await expect(page.locator(wanted).first).to_be_visible()
                named = page.locator("main bdi", has_text=prefix[:20])
                if view != "map":
                    await expect(named.first).to_be_visible()
                assert await page.locator("img[src=x]").count() == 0
                assert await page.title() != "1"
                assert await page.evaluate(
                    "() => document.documentElement.scrollWidth <= innerWidth"
                )


async def test_every_view_is_its_url(shown: Site, browser: Browser) -> None:
    async with opened(browser, shown, "color=queue&find=train&resource=cpu") as page:
        await expect(page.get_by_label("Colour by")).to_have_value("queue")
        await expect(page.get_by_label("Resource")).to_have_value("cpu")
        await expect(page.get_by_label("Find")).to_have_value("train")
        await page.get_by_role("link", name="Queues").click()
        assert "view=queues" in page.url
        assert "resource=cpu" in page.url
        await expect(page.get_by_role("heading", name="ClusterQueue vision")).to_be_visible()
        await page.go_back()
        await expect(page.get_by_label("Find")).to_have_value("train")


@pytest.mark.parametrize(
    ("button", "file"), [("PNG", "map.png"), ("SVG", "map.svg"), ("JSON", "map.json")]
)
async def test_the_map_is_exported(
    shown: Site, browser: Browser, button: str, file: str, tmp_path: Path
) -> None:
    async with opened(browser, shown) as page:
        async with page.expect_download() as waiting:
            await page.get_by_role("button", name=button).click()
        download = await waiting.value
        assert download.suggested_filename == f"rackgate-{file}"
        await download.save_as(tmp_path / file)
        content = (tmp_path / file).read_bytes()
    match button:
        case "PNG":
            assert content.startswith(b"\x89PNG")
        case "SVG":
            assert content.count(b"<title>node-") == 192
        case _:
            assert len(json.loads(content)["hosts"]) == 192


async def test_history_of_a_queue_is_drawn(shown: Site, browser: Browser) -> None:
    async with opened(browser, shown, "view=queues") as page:
        queue = page.locator("article", has=page.get_by_role("heading", name="ClusterQueue vision"))
        await queue.get_by_text("Last hour").click()
        await expect(queue.locator("figure")).to_have_count(2)
        await expect(queue).to_contain_text("at most 512")


async def test_a_workload_is_read_again_after_news_alone(browser: Browser) -> None:
    async with (
        site(hosts=16) as found,
        opened(browser, found, "view=workload&w=vision/job-eval-0") as page,
    ):
        await expect(page.locator(".explanation")).to_be_visible()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        refresh = "() => globalThis.rackgate.view.refresh()"
        await page.evaluate(refresh)
        assert asked == []
        for name in ("later", "soon-after", "last"):  # some of them in the same second
            # The page may be about to look again by itself.
            async with page.expect_response(re.compile("/api/workloads/vision/job-eval-0")):
                found.api.put(kinds.WORKLOADS, workload("vision", name, 1, job=name))
                await page.wait_for_function(
                    "(key) => globalThis.rackgate.stream.tables.workloads.has(key)",
                    arg=f"vision/{name}",
                )
                await page.evaluate(refresh)


async def test_an_open_history_is_renewed(browser: Browser) -> None:
    async with site(hosts=16) as found, opened(browser, found, "view=queues") as page:
        queue = page.locator("article", has=page.get_by_role("heading", name="ClusterQueue vision"))
        await queue.get_by_text("Last hour").click()
        await expect(queue.locator("figcaption").first).to_contain_text(", 1 point")
        found.console.history.add(found.console.cache.quota_usage().tree, "2026-08-01T12:00:30Z")
        await page.evaluate("() => globalThis.rackgate.view.renew()")
        await expect(queue.locator("figcaption").first).to_contain_text(", 2 points")


async def test_hosts_of_a_large_topology_are_listed_for_the_chosen_domain(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_rows, "MOST_HOSTS", 8)
    async with site(hosts=32) as found, opened(browser, found) as page:
        await expect(page.locator(".side")).to_contain_text("too large to draw hosts")
        await page.wait_for_function("() => globalThis.rackgate.view.facts().leaves > 0")
        await page.locator("canvas").focus()
        await page.keyboard.press("ArrowRight")
        hosts = page.get_by_role("region", name="Hosts")
        await expect(hosts.get_by_role("rowheader").first).to_contain_text("node-")
        names = {
            one.split(" ")[0] for one in await hosts.get_by_role("rowheader").all_inner_texts()
        }
        assert names <= found.console.cache.nodes.keys()
        rack = await page.locator(".side h2").inner_text()
        wanted = {
            name for name, one in found.console.cache.nodes.items() if rack in one.labels.values()
        }
        assert names == wanted
        await expect(hosts.get_by_role("link").first).to_have_attribute(
            "href", re.compile("view=workload")
        )


async def test_the_page_goes_on_after_the_api_server_was_away(browser: Browser) -> None:
    async with site(hosts=16) as found, opened(browser, found, "view=pending") as page:
        await found.api.stop()
        said = page.get_by_role("status")
        await expect(said).to_contain_text("The API server does not answer since", timeout=30_000)
        await expect(page.get_by_role("link", name="Job/eval-0")).to_be_visible()
        found.api.compact()
        await found.api.start()
        found.api.put(kinds.WORKLOADS, workload("vision", "later", 1, job="later"))
        await expect(page.get_by_role("link", name="Job/later")).to_be_visible(timeout=60_000)
        await expect(said).to_have_text("Live", timeout=30_000)


async def test_the_page_says_since_when_the_console_is_away(browser: Browser) -> None:
    async with site(hosts=16) as found, opened(browser, found, "view=queues") as page:
        await found.server.stop()
        await expect(page.get_by_role("status")).to_contain_text("Disconnected since")
        await expect(page.get_by_role("heading", name="ClusterQueue vision")).to_be_visible()


async def test_changes_are_shown_without_a_reload(browser: Browser) -> None:
    async with site(hosts=32) as found, opened(browser, found) as page:
        before = await page.locator(".side").text_content()
        host = next(iter(found.console.cache.nodes))
        node = copy.deepcopy(found.api.get(kinds.NODES, host))
        assert node is not None
        node["spec"]["unschedulable"] = True
        found.api.put(kinds.NODES, node)
        async with asyncio.timeout(30):
            while await page.locator(".side").text_content() == before:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "state", ["view=constructor", "color=constructor", "view=pending&q=no/queue"]
)
async def test_odd_values_in_a_url_show_a_view(shown: Site, browser: Browser, state: str) -> None:
    async with opened(browser, shown, state) as page:
        if "pending" in state:
            await expect(page.get_by_label("Queue")).to_have_value("no/queue")
            await page.get_by_label("Queue").select_option("")
            await expect(page.get_by_role("link", name="Job/eval-0")).to_be_visible()
        else:
            await page.wait_for_function("() => globalThis.rackgate?.view?.facts?.().frames > 1")


async def test_to_skip_to_the_content_keeps_the_view_and_news_keep_the_focus(
    browser: Browser,
) -> None:
    async with site(hosts=16) as found, opened(browser, found, "view=pending") as page:
        await page.get_by_role("link", name="Job/eval-0").focus()
        found.api.put(kinds.WORKLOADS, workload("vision", "later", 1, job="later"))
        await expect(page.get_by_role("link", name="Job/later")).to_be_visible()
        focused = await page.evaluate("() => document.activeElement.textContent")
        assert focused == "Job/eval-0"
        await page.locator(".skip").focus()
        await page.keyboard.press("Enter")
        assert page.url.endswith("#view=pending")
        assert await page.evaluate("() => document.activeElement.id") == "main"


async def test_an_answer_that_comes_late_is_not_shown_for_another_job(
    shown: Site, browser: Browser
) -> None:
    async with opened(browser, shown) as page:
        may_answer = asyncio.Event()

        async def late(route: Route) -> None:
            await may_answer.wait()
            await route.continue_()

        await page.route("**/api/workloads/vision/job-eval-0", late)
        await page.evaluate("() => { location.hash = 'w=vision/job-eval-0'; }")
        await expect(page.locator(".side h2")).to_contain_text("vision/job-eval-0")
        await page.evaluate("() => { location.hash = 'w=research/job-train-0'; }")
        lead = page.locator(".side .explanation .lead")
        await expect(lead).to_contain_text("admitted")
        async with page.expect_response("**/api/workloads/vision/job-eval-0"):
            may_answer.set()
        await page.evaluate("() => new Promise(requestAnimationFrame)")
        await expect(page.locator(".side h2")).to_contain_text("research/job-train-0")
        await expect(lead).to_contain_text("admitted")
