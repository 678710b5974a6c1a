// What the map shows, from the tables of the stream. Pure.

/**
 * @typedef {import("./layout.js").Leaf} Leaf
 * @typedef {{key: string, row: any, podset: string, pods: number}} Use a Workload on a host
 */

/**
 * The leaves of a topology: its hosts, or its lowest domains.
 * @param {any} topology @param {Map<string, any>} hosts @param {Map<string, any>} domains
 * @returns {{leaves: Leaf[], depth: number}}
 */
export function leavesOf(topology, hosts, domains) {
  const levels = topology.levels.length;
  if (topology.hostRows && hosts.size) {
    const leaves = [];
    for (const [key, row] of hosts) {
      if (row.f === topology.flavor) leaves.push({ path: row.p, name: row.h, key, row });
    }
    return { leaves, depth: levels - 1 };
  }
  let lowest = -1;
  for (const row of domains.values()) if (row.f === topology.flavor) lowest = Math.max(lowest, row.l);
  const leaves = [];
  for (const [key, row] of domains) {
    if (row.f === topology.flavor && row.l === lowest) {
      leaves.push({ path: row.p.slice(0, -1), name: row.p[row.p.length - 1], key, row });
    }
  }
  return { leaves, depth: Math.max(0, lowest) };
}

/**
 * Workloads by host name, or by path of a domain joined by `/`.
 * @param {Map<string, any>} workloads
 * @returns {Map<string, Use[]>}
 */
export function usesOf(workloads) {
  /** @type {Map<string, Use[]>} */
  const found = new Map();
  for (const [key, row] of workloads) {
    for (const podset of row.podsets) {
      for (const [values, pods] of podset.domains ?? []) {
        const place = values.join("/");
        const list = found.get(place);
        const use = { key, row, podset: podset.name, pods };
        if (list) list.push(use);
        else found.set(place, [use]);
      }
    }
  }
  return found;
}

/** @param {Leaf} leaf @param {Map<string, Use[]>} uses @returns {Use[]} */
export function usesOfLeaf(leaf, uses) {
  return uses.get(leaf.row.h !== undefined ? leaf.row.h : leaf.row.p.join("/")) ?? [];
}

/** Used by allocatable, of one resource. @param {any} row @param {number} at index of the resource */
export function shareOf(row, at) {
  const offered = row.a[at] ?? 0;
  return offered > 0 ? (row.u[at] ?? 0) / offered : (row.u[at] ?? 0) > 0 ? 1 : 0;
}

/** Marks of a host as letters; of a domain, those that some of its hosts have. @param {any} row */
export function marksOf(row) {
  if (typeof row.m === "string") return row.m;
  const counts = row.m ?? {};
  return (counts.unready ? "u" : "") + (counts.cordoned ? "c" : "") + (counts.tainted ? "t" : "");
}

export const MARKS = { u: "not ready", c: "cordoned", t: "tainted" };

/**
 * For each level above the hosts, and for the whole topology: where the largest gang would fit.
 * @param {any} topology @param {Leaf[]} leaves @param {number} depth @param {number} at index of the resource
 * @returns {Array<{level: string, domains: number, freeHosts: number, best: string, bestHosts: number, stranded: number}>}
 * `freeHosts`: hosts with nothing of the resource in use. `stranded`: part of the free amount that lies
 * in hosts that are partly in use.
 */
export function fragmentation(topology, leaves, depth, at) {
  const rows = [];
  for (let level = 0; level <= depth; level += 1) {
    /** @type {Map<string, {whole: number, free: number, partly: number}>} */
    const domains = new Map();
    for (const leaf of leaves) {
      const key = level === 0 ? "" : leaf.path.slice(0, level).join("/");
      let sums = domains.get(key);
      if (!sums) domains.set(key, (sums = { whole: 0, free: 0, partly: 0 }));
      const offered = leaf.row.a[at] ?? 0;
      const free = Math.max(0, offered - (leaf.row.u[at] ?? 0));
      if (/[uc]/.test(marksOf(leaf.row)) || !offered) continue;
      sums.free += free;
      if (free === offered) sums.whole += leaf.row.n ?? 1;
      else sums.partly += free;
    }
    let best = "";
    let bestHosts = -1;
    let free = 0;
    let partly = 0;
    let whole = 0;
    for (const [key, sums] of domains) {
      free += sums.free;
      partly += sums.partly;
      whole += sums.whole;
      if (sums.whole > bestHosts) [best, bestHosts] = [key, sums.whole];
    }
    rows.push({
      level: level === 0 ? "" : topology.levels[level - 1],
      domains: domains.size,
      freeHosts: whole,
      best,
      bestHosts: Math.max(0, bestHosts),
      stranded: free ? partly / free : 0,
    });
  }
  return rows;
}

/**
 * Leaves that a search finds: by host, path, job, queue or namespace.
 * @param {Leaf[]} leaves @param {Map<string, Use[]>} uses @param {string} text
 * @returns {Set<number>|null} null without a search
 */
export function search(leaves, uses, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const found = new Set();
  leaves.forEach((leaf, index) => {
    const words = [leaf.name, ...leaf.path];
    for (const use of usesOfLeaf(leaf, uses)) {
      words.push(use.key, use.row.job, use.row.queue, use.row.cq);
    }
    if (words.some((word) => word.toLowerCase().includes(wanted))) found.add(index);
  });
  return found;
}
