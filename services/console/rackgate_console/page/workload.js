// One Workload: PodSets, ranks on their hosts, assignment against reality, and what happened.

import { fill, h, name } from "./dom.js";
import { amount, clock, count, duration, short } from "./format.js";
import { details, explanationOf } from "./explanation.js";
import { jsonButton } from "./export.js";
import { link, read } from "./url.js";

const REFRESH_MS = 5_000;
// Gated pods and Events are not in the stream, so without news they are read less often.
const WITHOUT_NEWS_MS = 30_000;

export class WorkloadView {
  /** @param {import("./stream.js").Stream} stream */
  constructor(stream) {
    this.stream = stream;
    this.element = h("div", { class: "workload-view" });
    this.key = "";
    /** @type {any} */
    this.found = null;
    this.problem = "";
    this.loading = false;
    this.loadedAt = 0;
    this.seen = -1;
    this.timer = setInterval(() => this.refresh(), REFRESH_MS);
  }

  /** Load again what the news of the stream may have changed. */
  refresh() {
    if (this.stream.news !== this.seen || Date.now() - this.loadedAt > WITHOUT_NEWS_MS) this.load();
  }

  close() {
    clearInterval(this.timer);
  }

  update() {
    const { w = "" } = read();
    if (w === this.key) return;
    this.key = w;
    this.found = null;
    this.problem = "";
    this.render();
    this.load();
  }

  async load() {
    if (!this.key || this.loading) return;
    this.loading = true;
    this.loadedAt = Date.now();
    this.seen = this.stream.news;
    const key = this.key;
    try {
      const found = await details(key);
      if (key === this.key) [this.found, this.problem] = [found, ""];
    } catch (error) {
      this.loadedAt = 0;
      if (key === this.key) this.problem = String(/** @type {Error} */ (error).message);
    } finally {
      this.loading = false;
    }
    this.render();
    if (key !== this.key) this.load();
  }

  render() {
    const row = this.stream.tables.workloads.get(this.key);
    const { found } = this;
    if (!this.key) {
      fill(this.element, h("p", { class: "notice" }, "Choose a Workload on the page Pending, or a host on the map."));
      return;
    }
    fill(this.element,
      h("div", { class: "title" }, h("h1", {}, name(row?.job || found?.explanation.job || this.key)),
        h("p", {}, name(this.key), row ? [" · queue ", name(row.queue), " · ", h("span", { class: `badge ${row.status.toLowerCase()}` }, row.status)] : "",
          " · ", h("a", { href: link({ view: "map", w: this.key }) }, "show on map")),
        found ? jsonButton(() => found, "workload") : ""),
      this.problem ? h("p", { class: "notice bad", role: "alert" }, this.problem) : "",
      found ? h("div", { class: "columns" },
        h("section", { "aria-labelledby": "w-why" }, h("h2", { id: "w-why" }, "Explanation"), explanationOf(found.explanation)),
        h("section", { "aria-labelledby": "w-time" }, h("h2", { id: "w-time" }, "Timeline"), timeline(found.timeline)),
        h("section", { class: "wide", "aria-labelledby": "w-pods" }, h("h2", { id: "w-pods" }, `Pods (${found.podsTotal})`), podSets(row), pods(found))) : h("p", { class: "hint" }, this.problem ? "" : "…"));
  }
}

/** @param {any[]} entries */
function timeline(entries) {
  if (!entries.length) return h("p", { class: "hint" }, "Nothing is known.");
  let before = 0;
  return h("ol", { class: "timeline" }, ...entries.map((entry) => {
    const at = Date.parse(entry.time);
    const gap = before && at > before ? duration((at - before) / 1000) : "";
    before = at || before;
    return h("li", { class: entry.warning ? "warning" : "" },
      h("time", { datetime: entry.time }, clock(entry.time)), gap ? h("span", { class: "gap" }, `+${gap}`) : "",
      h("strong", {}, name(entry.event)), entry.count ? ` ×${entry.count}` : "", entry.text ? h("p", {}, name(entry.text)) : "");
  }));
}

/** @param {any} row */
function podSets(row) {
  if (!row) return "";
  return h("ul", { class: "plain" }, ...row.podsets.map((/** @type {any} */ one) => h("li", {}, h("strong", {}, name(one.name)),
    ` ${count(one.count, "pods")}, each ${Object.entries(one.requests).map(([key, value]) => `${amount(key, /** @type {number} */ (value))} ${short(key)}`).join(", ") || "without requests"}`,
    one.domains ? ` · assigned to ${count(one.domains.length, "domains")} of ${short(one.levels[one.levels.length - 1])}` : "")));
}

/** @param {any} found */
function pods(found) {
  if (!found.pods.length) return h("p", { class: "hint" }, "It has no pods.");
  const misplaced = found.pods.filter((/** @type {any} */ one) => one.misplaced).length;
  return h("div", {},
    misplaced ? h("p", { class: "notice bad", role: "alert" }, `${count(misplaced, "pods")} ${misplaced === 1 ? "runs" : "run"} outside the assigned domains.`) : "",
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Pods" }, h("table", {},
      h("thead", {}, h("tr", {}, ...["PodSet", "Rank", "Pod", "Assigned", "Node", "State"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, ...found.pods.map((/** @type {any} */ one) => h("tr", { class: one.misplaced ? "misplaced" : "" },
        h("td", {}, name(one.podset)), h("td", { class: "number" }, one.rank === null ? "" : String(one.rank)), h("th", { scope: "row" }, name(one.name)),
        h("td", {}, name(one.assigned.join(" / "))), h("td", {}, one.host ? h("a", { href: link({ view: "map", host: one.host }) }, name(one.host)) : ""),
        h("td", {}, one.misplaced ? "✗ wrong place; " : "", name(one.why || one.phase))))))),
    found.podsTotal > found.pods.length ? h("p", { class: "hint" }, `The first ${found.pods.length} of ${found.podsTotal}.`) : "");
}
