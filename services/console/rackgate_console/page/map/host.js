// The chosen host: what it offers, which Workloads are assigned to it, and their pods that run there.

import { h, name } from "../dom.js";
import { details } from "../explanation.js";
import { amount, count, short, since } from "../format.js";
import { ask } from "../session.js";
import { link } from "../url.js";
import { MARKS, marksOf } from "./model.js";

// Somebody who walks over the hosts with the arrow keys asks for nothing on the way.
const WAIT_MS = 300;
const KEPT_MS = 15000;
const MOST_WORKLOADS = 6;
const MOST_PODS = 16;

/** Pods of the Workloads of one host, which the stream does not have. */
export class HostPods {
  /** @param {() => void} arrived */
  constructor(arrived) {
    this.arrived = arrived;
    /** @type {Map<string, any[]>} by Workload */
    this.pods = new Map();
    this.wanted = "";
    this.askedAt = 0;
    this.timer = 0;
  }

  /** Ask for the pods of a host, unless they are here. @param {string} host @param {string[]} keys of Workloads */
  choose(host, keys) {
    const wanted = JSON.stringify([host, keys]);
    if (wanted === this.wanted && Date.now() - this.askedAt < KEPT_MS) return;
    if (wanted !== this.wanted) this.pods = new Map();
    this.wanted = wanted;
    this.askedAt = Date.now();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(wanted, host, keys.slice(0, MOST_WORKLOADS)), WAIT_MS);
  }

  /** @param {string} wanted @param {string} host @param {string[]} keys */
  async ask(wanted, host, keys) {
    for (const key of keys) {
      try {
        const { pods } = await details(key);
        if (this.wanted !== wanted) return;
        this.pods.set(key, pods.filter((/** @type {any} */ pod) => isOn(pod, host)));
      } catch {
        // Its Workload is shown all the same; the next time it is asked again.
      }
    }
    if (this.wanted === wanted) this.arrived();
  }
}

/** Hosts of one domain of a topology that is too large to have all of them in the stream. */
export class DomainHosts {
  /** @param {() => void} arrived */
  constructor(arrived) {
    this.arrived = arrived;
    /** @type {{hosts: any[], total: number}|null} */
    this.found = null;
    this.problem = "";
    this.wanted = "";
    this.askedAt = 0;
    this.timer = 0;
  }

  /** Ask for the hosts of a domain, unless they are here. @param {string} flavor @param {string[]} path */
  choose(flavor, path) {
    const wanted = JSON.stringify([flavor, path]);
    if (wanted === this.wanted && Date.now() - this.askedAt < KEPT_MS) return;
    if (wanted !== this.wanted) [this.found, this.problem] = [null, ""];
    this.wanted = wanted;
    this.askedAt = Date.now();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(wanted, flavor, path), WAIT_MS);
  }

  /** @param {string} wanted @param {string} flavor @param {string[]} path */
  async ask(wanted, flavor, path) {
    try {
      const answer = await ask(`/api/hosts/${encodeURIComponent(flavor)}`, { query: { domain: path.join("/") } });
      const found = await answer.json();
      if (this.wanted !== wanted) return;
      [this.found, this.problem] = [found, ""];
    } catch (error) {
      if (this.wanted !== wanted) return;
      this.problem = String(/** @type {Error} */ (error).message);
    }
    this.arrived();
  }
}

/**
 * The hosts of the chosen domain.
 * @param {any} topology @param {import("./layout.js").Leaf} leaf @param {number} at index of the resource
 * @param {Map<string, import("./model.js").Use[]>} uses @param {DomainHosts} hosts
 */
export function hostsPart(topology, leaf, at, uses, hosts) {
  hosts.choose(topology.flavor, leaf.row.p);
  const { found } = hosts;
  if (!found) return h("p", { class: "hint" }, name(hosts.problem || "…"));
  const resource = topology.resources[at];
  return h("div", { class: "card" }, h("h3", {}, `Hosts (${found.total})`),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Hosts" }, h("table", {},
      h("thead", {}, h("tr", {}, ...["Host", `${short(resource)} used`, "Of", "Workloads"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, ...found.hosts.map((row) => h("tr", {},
        h("th", { scope: "row" }, name(row.h), ...[...marksOf(row)].map((mark) => ` (${MARKS[/** @type {"u"} */ (mark)]})`)),
        h("td", { class: "number" }, amount(resource, row.u[at] ?? 0)), h("td", { class: "number" }, amount(resource, row.a[at] ?? 0)),
        h("td", {}, ...workloadLinks(uses.get(row.h) ?? []))))))),
    found.total > found.hosts.length ? h("p", { class: "hint" }, `The first ${found.hosts.length} of ${found.total}.`) : "");
}

/** @param {import("./model.js").Use[]} uses */
function workloadLinks(uses) {
  const shown = uses.slice(0, MOST_WORKLOADS).flatMap((use, index) => [index ? ", " : "",
    h("a", { href: link({ view: "workload", w: use.key }) }, name(use.row.job || use.key)), ` (${count(use.pods, "pods")})`]);
  return uses.length > MOST_WORKLOADS ? [...shown, ` and ${uses.length - MOST_WORKLOADS} more`] : shown;
}

/** Whether a pod runs on a host; its node may have another name than the host. @param {any} pod @param {string} host */
function isOn(pod, host) {
  if (!pod.host || pod.phase === "Succeeded" || pod.phase === "Failed") return false;
  return pod.host === host || (!pod.misplaced && pod.assigned?.at(-1) === host);
}

/**
 * @param {any} topology @param {import("./layout.js").Leaf} leaf
 * @param {import("./model.js").Use[]} uses @param {HostPods} pods @param {number} now
 */
export function hostPart(topology, leaf, uses, pods, now) {
  const marks = [...marksOf(leaf.row)].map((mark) => MARKS[/** @type {"u"} */ (mark)]).join(", ");
  if (topology.hostRows && uses.length) pods.choose(leaf.name, [...new Set(uses.map((use) => use.key))]);
  return h("div", { class: "card" },
    h("h2", {}, name(leaf.name)), h("p", { class: "path" }, name(leaf.path.join(" / "))),
    marks ? h("p", { class: "marked" }, marks) : "",
    h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Resource"), h("th", { scope: "col" }, "Used"), h("th", { scope: "col" }, "Of"))),
      h("tbody", {}, ...topology.resources.map((/** @type {string} */ one, /** @type {number} */ at) => h("tr", {},
        h("th", { scope: "row" }, short(one)), h("td", { class: "number" }, amount(one, leaf.row.u[at] ?? 0)),
        h("td", { class: "number" }, amount(one, leaf.row.a[at] ?? 0)))))),
    uses.length ? h("ul", { class: "plain" }, ...uses.map((use) => h("li", {},
      h("a", { href: link({ view: "workload", w: use.key }) }, name(use.row.job || use.key)),
      " ", name(`${use.row.ns}, ${count(use.pods, "pods")} of ${use.podset}`),
      use.row.since ? `, for ${since(use.row.since, now)}` : "",
      podList((pods.pods.get(use.key) ?? []).filter((pod) => pod.podset === use.podset)))))
      : h("p", { class: "hint" }, topology.hostRows ? "No Workload of yours is assigned here."
        : "No Workload of yours is assigned to this domain itself."));
}

/** @param {any[]} pods */
function podList(pods) {
  if (!pods.length) return "";
  return h("ul", { class: "pods" }, ...pods.slice(0, MOST_PODS).map((pod) => h("li", { class: pod.misplaced ? "misplaced" : "" },
    pod.rank === null ? "" : `rank ${pod.rank}: `, name(pod.name), `, ${pod.phase}${pod.misplaced ? ", not assigned here" : ""}`)),
  pods.length > MOST_PODS ? h("li", {}, `and ${pods.length - MOST_PODS} more`) : "");
}
