// An explanation as text: what is missing, where, who holds it, and what would help.

import { h, name } from "./dom.js";
import { count, short } from "./format.js";
import { ask } from "./session.js";
import { link } from "./url.js";

/** @param {string} key `namespace/name` @returns {Promise<any>} */
export async function details(key) {
  const [namespace, ...rest] = key.split("/");
  const path = `/api/workloads/${encodeURIComponent(namespace)}/${encodeURIComponent(rest.join("/"))}`;
  return (await ask(path)).json();
}

/**
 * @param {any} found Explanation
 * @param {{flavor?: string, brief?: boolean}} [options]
 */
export function explanationOf(found, { flavor = "", brief = false } = {}) {
  const views = found.flavors.filter((/** @type {any} */ one) => !flavor || one.flavor === flavor);
  return h("div", { class: "explanation" },
    h("p", { class: "lead" }, name(found.summary)),
    ...found.podsets.map(podsetStatus),
    ...found.gangs.map(gang),
    ...found.resizes.map((/** @type {any} */ one) => h("p", {}, name(one.podset), `: ${one.asked} pods requested, ${one.granted} admitted`,
      one.waiting ? `, ${one.waiting} pending` : "", one.because ? [": ", name(one.because)] : "", ...one.slices.flatMap((/** @type {string} */ key) => [" ", workloadLink(key)]))),
    found.changes.length ? h("div", {}, h("h3", {}, "What would help"),
      h("ul", {}, ...found.changes.map((/** @type {any} */ one) => h("li", {}, name(one.text), when(one.when))))) : "",
    ...found.quota.filter((/** @type {any} */ line) => !brief || line.missing !== "0").map(quotaLine),
    ...views.map((/** @type {any} */ view) => flavorView(view, brief)),
    found.notPreempted.length ? h("div", {}, h("h3", {}, "Not preempted"),
      h("ul", {}, ...found.notPreempted.map((/** @type {any} */ one) => h("li", {}, workloadLink(one.workload), ": ", name(one.text))))) : "",
    found.queue?.ahead.length && !brief ? h("div", {}, h("h3", {}, "Ahead in the queue"),
      h("ol", {}, ...found.queue.ahead.map((/** @type {any} */ one) => h("li", {}, workloadLink(one.workload), ` priority ${one.priority}`)))) : "",
    found.errors.length ? h("div", {}, h("h3", {}, "It would be rejected"),
      h("ul", {}, ...found.errors.map((/** @type {any} */ one) => h("li", {}, h("code", {}, name(one.path)), " ", name(one.problem), one.help ? ": " : "", name(one.help))))) : "",
    found.warnings.length ? h("div", {}, h("h3", {}, "Warnings"), h("ul", {}, ...found.warnings.map((/** @type {string} */ one) => h("li", {}, name(one))))) : "");
}

/** @param {any} one */
function podsetStatus(one) {
  const parts = [`${one.running} of ${one.granted} pods run`];
  if (one.ended) parts.push(`${one.ended} ended`);
  if (one.missing) parts.push(`${one.missing} do not exist yet`);
  return h("div", {}, h("p", {}, h("strong", {}, name(one.podset)), ` ${parts.join(", ")}`),
    one.held.length ? h("ul", {}, ...one.held.map((/** @type {any} */ held) => h("li", {}, `${count(held.pods, "pods")}: `, name(held.why)))) : "",
    one.brokenNodes.length ? h("p", { class: "marked" }, "assigned hosts that are not healthy: ", name(one.brokenNodes.join(", "))) : "");
}

/** @param {any} one */
function gang(one) {
  return h("p", {}, "Gang ", name(one.gang || one.workload), `: ${one.state}, ${one.members} of at least ${one.minCount} pods, ${one.released} released, ${one.bound} bound`,
    one.why ? ["; ", name(one.why)] : "", one.leftSeconds !== null && one.leftSeconds !== undefined ? `; evicted in ${one.leftSeconds} s` : "");
}

/** @param {string} key */
export const workloadLink = (key) => h("a", { href: link({ view: "workload", w: key }) }, name(key));

/** @param {string} text */
const when = (text) =>
  ({ now: "", whenEmpty: " (after others have ended)", ["perhaps"]: " (may not be enough)" })[text] ?? "";

/** @param {any} line */
function quotaLine(line) {
  return h("div", { class: "quota-line" }, h("h3", {}, "Quota ", name(`${line.flavor} ${short(line.resource)}`)),
    h("p", {}, line.nominal ? `requested ${line.requested}, in use ${line.used} of ${line.nominal}` : `requested ${line.requested}`,
      line.missing !== "0" ? h("strong", {}, `, missing ${line.missing}`) : "", line.problem ? "; " : "", name(line.problem)),
    holders(line.holders, line.moreHolders));
}

/** @param {any[]} list @param {number} more @param {string} [words] */
function holders(list, more, words = "held by ") {
  if (!list.length) return more ? h("p", { class: "holders" }, words, `${more} of others`) : "";
  return h("p", { class: "holders" }, words, ...list.flatMap((one, at) => [
    at ? ", " : "", one.kind === "Workload" ? workloadLink(one.name) : name(one.name),
    ` (${Object.entries(one.amounts).map(([key, value]) => `${value} ${short(key)}`).join(", ")})`,
  ]), more ? ` and ${more} more` : "");
}

/** @param {any} view @param {boolean} brief */
function flavorView(view, brief) {
  const levels = view.levels.filter((/** @type {any} */ level) => level.best.length && (!brief || level.asked));
  return h("div", {}, h("h3", {}, "Flavor ", name(view.flavor), view.asked ? ` (${view.asked})` : ""),
    h("p", {}, view.fits ? "It fits now." : view.fitsWhenEmpty ? "It would fit if nothing else were placed." : "It would not fit even if nothing else were placed.",
      view.cause ? [" ", name(view.cause), "."] : "", view.problem ? [" ", name(view.problem), "."] : ""),
    ...levels.map(levelTable),
    view.excluded.length && !brief ? h("div", {}, h("h4", {}, "Excluded nodes"), h("ul", {}, ...view.excluded.map((/** @type {any} */ one) =>
      h("li", {}, `${count(one.nodes, "nodes")}: ${one.rule} `, name(one.detail), " ", name(one.names.join(", ")))))) : "");
}

/** @param {any} level */
function levelTable(level) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Domains of ${level.level}` }, h("table", {},
    h("caption", {}, `Closest of ${level.domains.toLocaleString("en")}: `, name(short(level.level)), level.asked ? " (requested)" : ""),
    h("thead", {}, h("tr", {}, ...["Domain", "Pods fit", "Missing", "Held by"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, ...level.best.map((/** @type {any} */ one) => h("tr", {},
      h("th", { scope: "row", class: "short" }, name(one.domain.join(" / "))), h("td", { class: "number" }, String(one.pods)),
      h("td", {}, one.resources.filter((/** @type {any} */ r) => r.missing !== "0").map((/** @type {any} */ r) => `${r.missing} ${short(r.resource)}`).join(", ") || (one.fragmented ? "fragmented" : "")),
      h("td", {}, holders(one.holders, one.moreHolders, "")))))));
}
