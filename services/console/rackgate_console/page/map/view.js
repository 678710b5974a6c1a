// The view of the map: choices, canvas, tooltip, what is chosen, and a table with the same facts.

import { fill, h, choice, name } from "../dom.js";
import { amount, count, percent, short } from "../format.js";
import { go, link, read } from "../url.js";
import { canvasButton, jsonButton, svgButton } from "../export.js";
import { explanationOf, details } from "../explanation.js";
import { palette, ofName, ofShare } from "./colors.js";
import { MapCanvas } from "./canvas.js";
import { cellAt, boxesOf, layout } from "./layout.js";
import { listen } from "./gestures.js";
import { DomainHosts, HostPods, hostPart, hostsPart } from "./host.js";
import { MARKS, fragmentation, leavesOf, marksOf, search, shareOf, usesOf, usesOfLeaf } from "./model.js";
import { isDark } from "../theme.js";

/** @type {Array<[string, string]>} */
const COLORS = [["free", "share in use"], ["job", "job"], ["queue", "queue"], ["tenant", "namespace"], ["health", "health"]];

// An explanation is asked for again with the next change after this time.
const EXPLAINED_MS = 10_000;

/** What colours mean; an URL may say anything. @param {Record<string, string>} state */
const colorChoice = (state) => (COLORS.some(([key]) => key === state.color) ? state.color : "free");

export class MapView {
  /** @param {import("../stream.js").Stream} stream */
  constructor(stream) {
    this.stream = stream;
    this.element = h("div", { class: "map-view" });
    this.canvas = /** @type {HTMLCanvasElement} */ (h("canvas", {
      class: "map", tabindex: "0", role: "application", "aria-label": "Map of the topology",
      "aria-describedby": "map-help",
    }));
    this.controls = h("div", { class: "controls" });
    this.tip = h("div", { class: "tip", hidden: true, role: "presentation" });
    this.side = h("section", { class: "side", "aria-label": "Chosen" });
    this.said = h("p", { class: "visually-hidden", "aria-live": "polite" });
    this.legend = h("div", { class: "legend", tabindex: "0", role: "group", "aria-label": "Legend" });
    this.table = h("details", { class: "facts", ontoggle: () => this.fillTable() });
    this.element.append(
      h("h1", { class: "visually-hidden" }, "Map of the topology"),
      this.controls,
      h("div", { class: "map-frame" },
        h("div", { class: "canvas-box" }, this.canvas, this.tip, this.legend),
        this.side),
      h("p", { id: "map-help", class: "hint" },
        "Arrows choose a host, Shift and arrows move the map, + and - zoom, 0 shows everything."),
      this.said, this.table);
    this.map = new MapCanvas(this.canvas);
    listen(this.map, {
      hover: (event) => this.hover(event),
      leave: () => { this.tip.hidden = true; },
      choose: (event) => this.choose(event),
      step: (dx, dy) => this.step(dx, dy),
      enter: () => this.canvas.focus(),
      escape: () => go({ host: "" }, true),
    });
    this.shape = "";
    this.rendered = "";
    /** @type {import("./layout.js").Layout|null} */
    this.placed = null;
    /** @type {Map<string, import("./model.js").Use[]>} */
    this.uses = new Map();
    const redraw = () => {
      this.rendered = "";
      this.update();
    };
    this.pods = new HostPods(redraw);
    this.hosts = new DomainHosts(redraw);
    this.explained = "";
    /** When the explanation came; 0 while one is asked for. */
    this.explainedAt = 0;
    this.problem = "";
    this.at = 0;
    /** @type {any} */
    this.explanation = null;
  }

  close() {
    this.map.close();
  }

  /** @returns {any} */
  topology() {
    const { topologies } = this.stream.tables;
    return topologies.get(read().topology) ?? topologies.values().next().value;
  }

  /** What the canvas shows, for tests and measurements. */
  facts() {
    return {
      leaves: this.placed?.leaves.length ?? 0, outlines: this.map.outlines, frameMs: this.map.frameMs,
      frames: this.map.frames, selected: this.map.selected,
    };
  }

  update() {
    const topology = this.topology();
    if (!topology) {
      fill(this.controls);
      fill(this.side, h("p", { class: "notice" }, this.stream.tables.queues.size
        ? "No flavor has a topology with nodes, or you may not see any."
        : "There is nothing here yet."));
      return;
    }
    const state = read();
    const { versions } = this.stream;
    const stamp = [versions.topologies, versions.hosts, versions.domains, versions.workloads, location.hash, isDark()].join();
    if (stamp === this.rendered) return;
    this.rendered = stamp;
    const resource = topology.resources.includes(state.resource) ? state.resource : topology.resources[0];
    this.at = topology.resources.indexOf(resource);
    this.fillControls(topology, state, resource);
    this.place(topology);
    this.paint(topology, state);
    this.fillLegend(topology, state, resource);
    this.fillTable();
    this.fillSide(topology, state, resource);
  }

  /** @param {any} topology */
  place(topology) {
    const { tables, versions } = this.stream;
    const { leaves, depth } = leavesOf(topology, tables.hosts, tables.domains);
    const shape = `${topology.flavor} ${leaves.length} ${depth}`;
    if (!this.placed || shape !== this.shape || this.placedVersion !== versions.hosts + versions.domains) {
      this.placed = layout(leaves, depth);
      this.map.setLayout(this.placed, shape === this.shape);
      this.shape = shape;
      this.placedVersion = versions.hosts + versions.domains;
    }
    this.uses = usesOf(tables.workloads);
  }

  /** @param {any} topology @param {Record<string, string>} state */
  paint(topology, state) {
    const placed = /** @type {import("./layout.js").Layout} */ (this.placed);
    const colors = palette(isDark());
    const by = colorChoice(state);
    const found = search(placed.leaves, this.uses, state.find || "");
    const mine = state.w ? new Set() : null;
    placed.leaves.forEach((leaf, index) => {
      if (mine && usesOfLeaf(leaf, this.uses).some((use) => use.key === state.w)) mine.add(index);
    });
    const only = found ?? (mine?.size ? mine : null);
    this.map.cells = placed.leaves.map((leaf, index) => ({
      fill: this.colorOf(colors, leaf, by), marks: marksOf(leaf.row), dim: only !== null && !only.has(index),
    }));
    this.found = found;
    this.map.colors = colors;
    this.map.selected = state.host ? placed.leaves.findIndex((leaf) => leaf.name === state.host) : -1;
    this.map.outlines = this.outlines(topology, state);
    this.map.draw();
  }

  /** @param {import("./colors.js").Palette} colors @param {import("./layout.js").Leaf} leaf @param {string} by */
  colorOf(colors, leaf, by) {
    if (by === "free") return ofShare(colors, shareOf(leaf.row, this.at));
    if (by === "health") return marksOf(leaf.row) ? colors.none : colors.ok;
    const uses = usesOfLeaf(leaf, this.uses);
    if (!uses.length) return shareOf(leaf.row, this.at) > 0 ? colors.edge : colors.empty;
    const most = uses.reduce((best, use) => (use.pods > best.pods ? use : best));
    return ofName(colors, { job: most.row.job || most.key, queue: most.row.cq, tenant: most.row.ns }[by] ?? most.key);
  }

  /** @param {any} topology @param {Record<string, string>} state */
  outlines(topology, state) {
    const found = this.explanation && this.explained === state.w ? this.explanation : null;
    const view = found?.flavors.find((/** @type {any} */ one) => one.flavor === topology.flavor);
    if (!view) return [];
    const levels = view.levels.filter((/** @type {any} */ one) => one.best.length);
    const level = levels.find((/** @type {any} */ one) => one.asked) ?? levels[levels.length - 1];
    return (level?.best ?? []).map((/** @type {any} */ one) => ({
      path: one.domain, label: `${one.pods} of ${view.wanted} pods fit`,
    }));
  }

  /** @param {any} topology @param {Record<string, string>} state @param {string} resource */
  fillControls(topology, state, resource) {
    const flavors = [...this.stream.tables.topologies.values()].map((row) =>
      /** @type {[string, string]} */ ([row.flavor, row.topology === row.flavor ? row.flavor : `${row.flavor} (${row.topology})`]));
    fill(this.controls,
      choice("c-flavor", "Flavor", flavors, topology.flavor, (value) => go({ topology: value, host: "" })),
      choice("c-resource", "Resource", topology.resources.map((/** @type {string} */ one) => [one, one]), resource,
        (value) => go({ resource: value })),
      choice("c-color", "Colour by", COLORS, colorChoice(state), (value) => go({ color: value === "free" ? "" : value })),
      h("label", { class: "field grow" }, h("span", {}, "Find"),
        h("input", { id: "c-find", type: "search", value: state.find || "", placeholder: "host, job, queue, namespace",
          oninput: (/** @type {Event} */ event) => go({ find: /** @type {HTMLInputElement} */ (event.target).value }, true) })),
      h("div", { class: "buttons" },
        h("button", { type: "button", onclick: () => this.map.zoom(1.4), "aria-label": "Zoom in" }, "+"),
        h("button", { type: "button", onclick: () => this.map.zoom(1 / 1.4), "aria-label": "Zoom out" }, "−"),
        h("button", { type: "button", onclick: () => this.map.fit() }, "Fit"),
        canvasButton(this.map, "map"), svgButton(this.map, "map"),
        jsonButton(() => ({ topology, hosts: this.placed?.leaves.map((leaf) => leaf.row) }), "map")));
  }

  /** @param {any} topology @param {Record<string, string>} state @param {string} resource */
  fillLegend(topology, state, resource) {
    const colors = palette(isDark());
    const by = colorChoice(state);
    /** @param {string} color @param {string} text */
    const key = (color, text) => {
      const box = h("span", { class: "swatch" });
      box.style.background = color;
      return h("li", {}, box, name(text));
    };
    /** @type {Map<string, string>} */
    const names = new Map();
    if (by !== "free" && by !== "health") {
      for (const uses of this.uses.values()) for (const use of uses) {
        const text = { job: use.row.job || use.key, queue: use.row.cq, tenant: use.row.ns }[by] ?? use.key;
        if (names.size < 9) names.set(text, ofName(colors, text));
      }
    }
    const scale = by === "free"
      ? h("li", { class: "scale" }, "0 %", ...colors.steps.map((color) => {
          const step = h("span", { class: "swatch" });
          step.style.background = color;
          return step;
        }), `100 % of ${short(resource)} in use`)
      : null;
    const items = by === "health" ? [key(colors.ok, "accepts pods")]
      : [...names].slice(0, 8).map(([text, color]) => key(color, text));
    if (names.size > 8) items.push(h("li", {}, "and others"));
    fill(this.legend, h("ul", {}, scale ?? "", ...items,
      h("li", {}, h("span", { class: "swatch mark cross" }), "not ready"),
      h("li", {}, h("span", { class: "swatch mark stripe" }), "cordoned"),
      h("li", {}, h("span", { class: "swatch mark dot" }), "tainted")));
  }

  fillTable() {
    const topology = this.topology();
    if (!topology || !this.placed) return;
    const { leaves, levels } = this.placed;
    const rows = fragmentation(topology, leaves, levels, this.at);
    const outside = topology.outsideCount;
    const open = /** @type {HTMLDetailsElement} */ (this.table).open;
    fill(this.table, h("summary", {}, "Levels, free hosts and fragmentation as a table"), open ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Levels" },
      h("table", {}, h("thead", {}, h("tr", {}, ...["Level", "Domains", "Free hosts", "Largest in one domain", "Free in partly used hosts"].map((text) => h("th", { scope: "col" }, text)))),
        h("tbody", {}, ...rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.level || "whole topology"),
          h("td", { class: "number" }, String(row.domains)), h("td", { class: "number" }, String(row.freeHosts)),
          h("td", {}, row.best ? name(`${row.bestHosts} in ${row.best}`) : String(row.bestHosts)),
          h("td", { class: "number" }, percent(row.stranded))))))) : "",
      open && outside ? h("p", {}, `${count(outside, "nodes")} of the flavor in no domain: `,
        ...topology.outside.slice(0, 20).flatMap((/** @type {[string, string]} */ [node, why]) => [name(node), " (", name(why), ") "])) : "");
  }

  /** @param {any} topology @param {Record<string, string>} state @param {string} resource */
  fillSide(topology, state, resource) {
    const leaf = this.map.selected >= 0 ? this.placed?.leaves[this.map.selected] : null;
    const parts = [];
    if (state.w) parts.push(this.workloadPart(topology, state));
    if (leaf) parts.push(hostPart(topology, leaf, usesOfLeaf(leaf, this.uses), this.pods, Date.now()));
    if (leaf && topology.listsHosts) parts.push(hostsPart(topology, leaf, this.at, this.uses, this.hosts));
    if (this.found) parts.push(h("p", { class: "notice" }, `${count(this.found.size, "hosts")} match.`));
    if (!parts.length) parts.push(this.summaryPart(topology, resource));
    fill(this.side, ...parts);
  }

  /** @param {any} topology @param {string} resource */
  summaryPart(topology, resource) {
    const leaves = this.placed?.leaves ?? [];
    const at = this.at;
    let offered = 0;
    let used = 0;
    const marks = { u: 0, c: 0, t: 0 };
    for (const { row } of leaves) {
      offered += row.a[at] ?? 0;
      used += row.u[at] ?? 0;
      for (const mark of /** @type {Array<"u"|"c"|"t">} */ ([...marksOf(row)])) marks[mark] += 1;
    }
    const levels = fragmentation(topology, leaves, this.placed?.levels ?? 0, at);
    const last = levels[levels.length - 1];
    return h("div", {},
      h("h2", {}, name(topology.flavor)),
      h("dl", { class: "pairs" },
        pair("Hosts", topology.hosts.toLocaleString("en")),
        pair(`${short(resource)} in use`, `${amount(resource, used)} of ${amount(resource, offered)} (${percent(offered ? used / offered : 0)})`),
        pair("Free hosts", `${last?.freeHosts ?? 0}; at most ${last?.bestHosts ?? 0} in one ${short(last?.level || "topology")}`),
        pair("Not ready, cordoned, tainted", `${marks.u}, ${marks.c}, ${marks.t}`),
        topology.outsideCount ? pair("In no domain", count(topology.outsideCount, "nodes")) : ""),
      topology.hostRows ? "" : h("p", { class: "hint" }, topology.listsHosts ? "The topology is too large to draw hosts. Choose a domain to list them." : "Only domains are drawn."),
      h("p", { class: "hint" }, "Choose a host, or a pending Workload on the page Pending."));
  }

  /** @param {any} topology @param {Record<string, string>} state */
  workloadPart(topology, state) {
    if (this.explained !== state.w) {
      this.explanation = null;
      this.problem = "…";
      this.explain(state.w);
    } else if (this.explainedAt && Date.now() - this.explainedAt > EXPLAINED_MS) this.explain(state.w);
    const close = h("button", { type: "button", class: "quiet", onclick: () => go({ w: "" }) }, "Close");
    const found = this.explained === state.w ? this.explanation : null;
    return h("div", { class: "card" },
      h("h2", {}, h("a", { href: link({ view: "workload", w: state.w }) }, name(state.w)), close),
      found ? explanationOf(found, { flavor: topology.flavor, brief: true })
        : h("p", { class: "hint" }, name(this.explained === state.w ? this.problem : "…")));
  }

  /** @param {string} key */
  async explain(key) {
    this.explained = key;
    this.explainedAt = 0;
    try {
      const { explanation } = await details(key);
      if (this.explained !== key) return;
      this.explanation = explanation;
    } catch (error) {
      if (this.explained !== key) return;
      this.problem = String(/** @type {Error} */ (error).message);
    }
    this.explainedAt = Date.now();
    this.rendered = "";
    this.update();
    const first = this.map.outlines[0];
    if (first && this.placed) {
      const boxes = boxesOf(this.placed, first.path);
      const parent = boxes[Math.max(0, boxes.length - 2)];
      if (parent && !this.map.touched) this.map.show(parent);
    }
  }

  /** @param {PointerEvent} event */
  hover(event) {
    const placed = this.placed;
    if (!placed) return;
    const { x, y, mapX, mapY } = this.map.point(event);
    const cell = cellAt(placed, mapX, mapY);
    if (cell < 0) {
      this.tip.hidden = true;
      return;
    }
    const topology = this.topology();
    const leaf = placed.leaves[cell];
    const uses = usesOfLeaf(leaf, this.uses);
    const resource = topology.resources[this.at];
    fill(this.tip, h("strong", {}, name(leaf.name)), h("br"), name(leaf.path.join(" / ")), h("br"),
      `${short(resource)}: ${amount(resource, leaf.row.u[this.at] ?? 0)} of ${amount(resource, leaf.row.a[this.at] ?? 0)} in use`,
      ...[...marksOf(leaf.row)].flatMap((mark) => [h("br"), MARKS[/** @type {"u"} */ (mark)]]),
      ...uses.slice(0, 4).flatMap((use) => [h("br"), name(use.row.job || use.key), " ", name(use.row.ns), `: ${count(use.pods, "pods")}`]),
      uses.length > 4 ? h("br") : "", uses.length > 4 ? `and ${uses.length - 4} more` : "");
    this.tip.hidden = false;
    const width = this.tip.offsetWidth;
    const height = this.tip.offsetHeight;
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, this.map.width - width - 4))}px`;
    this.tip.style.top = `${y + 16 + height > this.map.height ? Math.max(4, y - height - 10) : y + 16}px`;
  }

  /** @param {PointerEvent} event */
  choose(event) {
    if (!this.placed) return;
    const { mapX, mapY } = this.map.point(event);
    const cell = cellAt(this.placed, mapX, mapY);
    go({ host: cell < 0 ? "" : this.placed.leaves[cell].name }, true);
  }

  /** The nearest host in a direction. @param {number} dx @param {number} dy */
  step(dx, dy) {
    const placed = this.placed;
    if (!placed?.leaves.length) return;
    let target = 0;
    if (this.map.selected >= 0) {
      const at = this.map.selected;
      let least = Infinity;
      target = at;
      for (let other = 0; other < placed.leaves.length; other += 1) {
        const along = (placed.x[other] - placed.x[at]) * dx + (placed.y[other] - placed.y[at]) * dy;
        if (along <= 0.1) continue;
        const across = Math.abs((placed.x[other] - placed.x[at]) * dy + (placed.y[other] - placed.y[at]) * dx);
        const distance = along + across * 3;
        if (distance < least) [least, target] = [distance, other];
      }
    }
    const leaf = placed.leaves[target];
    go({ host: leaf.name }, true);
    this.map.reveal(target);
    this.said.textContent = `${leaf.name}, ${leaf.path.join(", ")}, ${percent(shareOf(leaf.row, this.at))} in use`;
  }
}

/** @param {string} key @param {string} value */
const pair = (key, value) => h("div", {}, h("dt", {}, key), h("dd", {}, value));
