// Who waits: position, reason, time so far, and the expected start.

import { fill, h, name, choice } from "./dom.js";
import { clock, count, since } from "./format.js";
import { jsonButton } from "./export.js";
import { go, link, read } from "./url.js";

const MOST_ROWS = 500;

export class PendingView {
  /** @param {import("./stream.js").Stream} stream */
  constructor(stream) {
    this.stream = stream;
    this.element = h("div", { class: "pending-view" });
    this.rendered = "";
    this.timer = setInterval(() => {
      this.rendered = "";
      this.update();
    }, 15_000);
  }

  close() {
    clearInterval(this.timer);
  }

  update() {
    const state = read();
    const stamp = `${this.stream.versions.workloads} ${this.stream.versions.queues} ${location.hash}`;
    if (stamp === this.rendered) return;
    this.rendered = stamp;
    const { workloads, queues } = this.stream.tables;
    const names = [...new Set([...workloads.values()].map((row) => row.cq).filter(Boolean))].sort();
    const rows = [...workloads].filter(([key, row]) => row.status === (state.status || "Pending") && matches(key, row, state));
    rows.sort(([a, one], [b, other]) => one.cq.localeCompare(other.cq) || position(one) - position(other) || a.localeCompare(b));
    const total = [...queues.values()].reduce((sum, row) => sum + (row.kind === "LocalQueue" ? row.pending : 0), 0);
    const shown = rows.slice(0, MOST_ROWS);
    const waiting = (state.status || "Pending") === "Pending";
    fill(this.element, h("h1", { class: "visually-hidden" }, "Pending Workloads"),
      h("div", { class: "controls" },
        choice("p-status", "Status", ["Pending", "QuotaReserved", "Admitted", "Deactivated"].map((one) => [one, one]), state.status || "Pending",
          (value) => go({ status: value === "Pending" ? "" : value })),
        choice("p-queue", "Queue", [["", "all"], ...(state.q && !names.includes(state.q) ? [state.q] : []).concat(names).map((one) => /** @type {[string, string]} */ ([one, one]))], state.q || "", (value) => go({ q: value })),
        h("label", { class: "field grow" }, h("span", {}, "Find"), h("input", { id: "p-find", type: "search", value: state.find || "", placeholder: "job, Workload, namespace, reason",
          oninput: (/** @type {Event} */ event) => go({ find: /** @type {HTMLInputElement} */ (event.target).value }, true) })),
        h("div", { class: "buttons" }, jsonButton(() => Object.fromEntries(rows), "workloads"))),
      h("p", { class: "facts-line" }, `${count(rows.length, "Workloads")}${waiting && total > rows.length && !state.find && !state.q ? ` of ${total.toLocaleString("en")} pending` : ""}`,
        rows.length > MOST_ROWS ? `; the first ${MOST_ROWS} are shown` : ""),
      shown.length ? this.table(shown, waiting) : h("p", { class: "notice" }, waiting ? "No Workload is pending." : "There is none."));
  }

  /** @param {Array<[string, any]>} rows @param {boolean} waiting */
  table(rows, waiting) {
    const now = Date.now();
    const titles = waiting ? ["Position", "Workload", "Queue", "Priority", "Waits for", "Expected start", "Reason"]
      : ["Workload", "Queue", "Priority", "Since", "Reason"];
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Workloads" }, h("table", { class: "workloads" },
      h("thead", {}, h("tr", {}, ...titles.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, ...rows.map(([key, row]) => h("tr", {},
        waiting ? h("td", { class: "number" }, row.position ? String(row.position[0] + 1) : "—") : "",
        h("th", { scope: "row" }, h("a", { href: link({ view: "workload", w: key }) }, name(row.job || row.name)), h("small", {}, name(row.ns))),
        h("td", { class: "short" }, name(row.cq || row.queue || "none")),
        h("td", { class: "number" }, String(row.priority)),
        h("td", { class: "time" }, since(row.since, now)),
        waiting ? h("td", { class: "time" }, row.start ? `${row.startsBy ? "by" : "not before"} ${clock(row.start)}` : "") : "",
        h("td", { class: "message" }, name(row.message || row.reason), " ",
          waiting ? h("a", { href: link({ view: "map", w: key }) }, "show on map") : ""))))));
  }
}

/** @param {any} row */
const position = (row) => (row.position ? row.position[0] : Infinity);

/** @param {string} key @param {any} row @param {Record<string, string>} state */
function matches(key, row, state) {
  if (state.q && row.cq !== state.q && `${row.ns}/${row.queue}` !== state.q) return false;
  const wanted = (state.find || "").toLowerCase();
  return !wanted || [key, row.job, row.cq, row.queue, row.message, row.reason].some((text) => text.toLowerCase().includes(wanted));
}
