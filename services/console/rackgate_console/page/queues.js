// Queues as a tree: Cohorts, ClusterQueues and LocalQueues, with bars of their quota.

import { fill, h, name, svg } from "./dom.js";
import { amount, count, percent, short } from "./format.js";
import { jsonButton } from "./export.js";
import { ask } from "./session.js";
import { go, link, read } from "./url.js";

// The service has a point for each half minute.
const HISTORY_MS = 30_000;

export class QueuesView {
  /** @param {import("./stream.js").Stream} stream */
  constructor(stream) {
    this.stream = stream;
    this.element = h("div", { class: "queues-view" });
    this.rendered = "";
    /** Of the queues whose history is open. @type {Map<string, any>} */
    this.histories = new Map();
    this.timer = setInterval(() => this.renew(), HISTORY_MS);
  }

  close() {
    clearInterval(this.timer);
  }

  async renew() {
    await Promise.all([...this.histories.keys()].map((queue) => this.load(queue)));
  }

  /** @param {string} queue */
  async load(queue) {
    try {
      const found = await (await ask(`/api/history/ClusterQueue/${encodeURIComponent(queue)}`)).json();
      if (!this.histories.has(queue)) return;
      this.histories.set(queue, found);
    } catch (error) {
      // What is shown stays; the next time it is asked again.
      if (/** @type {any} */ (error).status === 404) this.histories.delete(queue);
      return;
    }
    this.rendered = "";
    this.update();
  }

  update() {
    const stamp = `${this.stream.versions.queues} ${location.hash} ${this.histories.size}`;
    if (stamp === this.rendered) return;
    this.rendered = stamp;
    const { queues } = this.stream.tables;
    /** @type {Map<string, Array<[string, any]>>} */
    const below = new Map();
    const roots = [];
    for (const [key, row] of queues) {
      if (row.parent && queues.has(row.parent)) {
        const list = below.get(row.parent) ?? [];
        list.push([key, row]);
        below.set(row.parent, list);
      } else roots.push(/** @type {[string, any]} */ ([key, row]));
    }
    const wanted = (read().find || "").toLowerCase();
    fill(this.element, h("h1", { class: "visually-hidden" }, "Queues"),
      h("div", { class: "controls" },
        h("label", { class: "field grow" }, h("span", {}, "Find"), h("input", { id: "q-find", type: "search", value: read().find || "", placeholder: "queue, namespace, flavor",
          oninput: (/** @type {Event} */ event) => go({ find: /** @type {HTMLInputElement} */ (event.target).value }, true) })),
        h("div", { class: "buttons" }, jsonButton(() => Object.fromEntries(queues), "queues"))),
      roots.length ? h("ul", { class: "tree" }, ...this.items(roots, below, wanted))
        : h("p", { class: "notice" }, "There are no queues that you may see."));
  }

  /** @param {Array<[string, any]>} rows @param {Map<string, Array<[string, any]>>} below @param {string} wanted @returns {HTMLElement[]} */
  items(rows, below, wanted) {
    return rows
      .filter(([key]) => matches(key, below, wanted, this.stream.tables.queues))
      .sort((a, b) => order(a[1]) - order(b[1]) || a[0].localeCompare(b[0], "en", { numeric: true }))
      .map(([key, row]) => {
        const children = below.get(key) ?? [];
        return h("li", {}, this.queue(key, row), children.length ? h("ul", {}, ...this.items(children, below, wanted)) : "");
      });
  }

  /** @param {string} key @param {any} row */
  queue(key, row) {
    const facts = [];
    if (row.kind !== "Cohort") {
      facts.push(`${row.pending} pending`, `${row.admitted} admitted`);
      if (row.reserving > row.admitted) facts.push(`${row.reserving - row.admitted} with quota reserved`);
    }
    if (row.share !== null && row.share !== undefined) facts.push(`share ${row.share < 0 ? "unlimited" : row.share} (weight ${row.weight})`);
    const title = row.ns ? `${row.ns}/${row.name}` : row.name;
    return h("article", { class: `queue ${row.kind.toLowerCase()}` },
      h("h2", {}, h("span", { class: "kind" }, row.kind), " ", name(title),
        row.active ? "" : h("span", { class: "badge bad", title: row.message }, name(row.reason || "not active"))),
      facts.length ? h("p", { class: "facts-line" }, facts.join(", "), row.kind === "Cohort" ? "" : [" · ", h("a", { href: link({ view: "pending", q: title }) }, "show pending")]) : "",
      row.active || !row.message ? "" : h("p", { class: "hint" }, name(row.message)),
      ...row.quotas.map((/** @type {any} */ quota) => quotaBar(quota)),
      row.kind === "ClusterQueue" ? this.history(row.name) : "");
  }

  /** @param {string} queue */
  history(queue) {
    const found = this.histories.get(queue);
    const element = h("details", { class: "history", open: Boolean(found), ontoggle: async (/** @type {Event} */ event) => {
      const open = /** @type {HTMLDetailsElement} */ (event.target).open;
      if (open && !this.histories.has(queue)) {
        this.histories.set(queue, { times: [], series: [] });
        await this.load(queue);
      } else if (!open) this.histories.delete(queue);
    } }, h("summary", {}, "Last hour"));
    for (const one of found?.series ?? []) element.append(historyLine(one, found.times));
    return element;
  }
}

/** @param {any} row */
const order = (row) => ({ Cohort: 0, ClusterQueue: 1, LocalQueue: 2 })[/** @type {string} */ (row.kind)] ?? 3;

/** @param {string} key @param {Map<string, Array<[string, any]>>} below @param {string} wanted @param {Map<string, any>} all @returns {boolean} */
function matches(key, below, wanted, all) {
  if (!wanted || key.toLowerCase().includes(wanted)) return true;
  if (all.get(key)?.quotas.some((/** @type {any} */ one) => one.flavor.toLowerCase().includes(wanted))) return true;
  return (below.get(key) ?? []).some(([child]) => matches(child, below, wanted, all));
}

/** @param {any} quota */
function quotaBar(quota) {
  const { resource, used } = quota;
  const label = h("span", { class: "bar-label" }, name(`${quota.flavor} · ${short(resource)}`));
  if (quota.nominal === undefined) {
    return h("p", { class: "bar-row" }, label, h("span", { class: "bar-text" }, `${amount(resource, used)} in use`));
  }
  const { nominal } = quota;
  const whole = Math.max(nominal, used, 1);
  const own = Math.min(used, nominal);
  const words = [`${amount(resource, used)} of ${amount(resource, nominal)}`];
  if (nominal) words.push(percent(used / nominal));
  if (quota.borrowed) words.push(`borrows ${amount(resource, quota.borrowed)}`);
  if (quota.lent) words.push(`lends ${amount(resource, quota.lent)}`);
  if (quota.borrowingLimit !== null && quota.borrowingLimit !== undefined) words.push(`borrowing limit ${amount(resource, quota.borrowingLimit)}`);
  if (quota.lendingLimit !== null && quota.lendingLimit !== undefined) words.push(`lending limit ${amount(resource, quota.lendingLimit)}`);
  return h("p", { class: "bar-row" }, label,
    svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "track", width: (100 * nominal) / whole, height: 8 }),
      svg("rect", { class: "used", width: (100 * own) / whole, height: 8 }),
      svg("rect", { class: "borrowed", x: (100 * nominal) / whole, width: (100 * Math.max(0, used - nominal)) / whole, height: 8 })),
    h("span", { class: "bar-text" }, words.join(", ")));
}

/** @param {any} one @param {string[]} times */
function historyLine(one, times) {
  const most = Math.max(1, ...one.used.filter(Number.isFinite), ...one.nominal.filter(Number.isFinite));
  const last = Math.max(1, times.length - 1);
  /** @param {Array<number|null>} values */
  const points = (values) => values.map((value, at) => (value === null ? "" : `${(100 * at) / last},${30 - (28 * value) / most}`)).filter(Boolean).join(" ");
  return h("figure", {},
    svg("svg", { class: "line", viewBox: "0 0 100 32", preserveAspectRatio: "none", role: "img", "aria-label": `${one.flavor} ${one.resource}: usage of the last hour` },
      svg("polyline", { class: "nominal", points: points(one.nominal) }), svg("polyline", { class: "used", points: points(one.used) })),
    h("figcaption", {}, name(`${one.flavor} · ${short(one.resource)}`), `, ${count(times.length, "points")}, at most ${amount(one.resource, most)}`));
}
