// Where each domain and host is drawn: nested boxes, in the order of their names. Pure.
//
// A host is a square of side 1. The children of a box are placed in rows, so that the box becomes about
// as wide as high times `ASPECT`. Every level adds a margin and room for its name.

const GAP = 0.14;
const MARGIN = 0.35;
const ASPECT = 1.6;

/**
 * @typedef {{name: string, path: string[], level: number, x: number, y: number, w: number, h: number,
 *   title: number, children: Box[], cells: number[], row: any, cell: number, first: number, last: number}} Box
 * `cells`: indexes of its hosts. `first` and `last`: range of all cells below it, in order.
 * `cell`: index of the cell that it is itself, in a topology without rows of hosts; else -1.
 */

/**
 * @typedef {{path: string[], name: string, key: string, row: any}} Leaf
 */

/**
 * @typedef {{root: Box, x: Float32Array, y: Float32Array, size: Float32Array, leaves: Leaf[], levels: number}} Layout
 */

/**
 * @param {Leaf[]} leaves hosts, or the lowest domains; with their paths
 * @param {number} depth levels above the leaves
 * @returns {Layout}
 */
export function layout(leaves, depth) {
  const sorted = leaves.slice().sort(byPath);
  const root = box("", [], -1);
  /** @type {Map<string, Box>} */
  const known = new Map();
  sorted.forEach((leaf, index) => {
    let parent = root;
    for (let level = 0; level < depth; level += 1) {
      const path = leaf.path.slice(0, level + 1);
      const key = path.join("/");
      let found = known.get(key);
      if (!found) {
        found = box(path[level] ?? "", path, level);
        found.first = index;
        known.set(key, found);
        parent.children.push(found);
      }
      found.last = index + 1;
      parent = found;
    }
    parent.cells.push(index);
  });
  root.last = sorted.length;
  const x = new Float32Array(sorted.length);
  const y = new Float32Array(sorted.length);
  const size = new Float32Array(sorted.length).fill(1 - GAP);
  measure(root, depth);
  place(root, 0, 0, x, y);
  return { root, x, y, size, leaves: sorted, levels: depth };
}

/** @param {Leaf} a @param {Leaf} b */
function byPath(a, b) {
  const length = Math.max(a.path.length, b.path.length);
  for (let at = 0; at < length; at += 1) {
    const order = natural(a.path[at] ?? "", b.path[at] ?? "");
    if (order) return order;
  }
  return natural(a.name, b.name);
}

const collator = new Intl.Collator("en", { numeric: true });
/** `rack-9` before `rack-10`. @param {string} a @param {string} b */
const natural = (a, b) => (a === b ? 0 : collator.compare(a, b));

/** @param {string} name @param {string[]} path @param {number} level @returns {Box} */
function box(name, path, level) {
  return {
    name, path, level, x: 0, y: 0, w: 0, h: 0, title: 0, children: [], cells: [], row: null,
    cell: -1, first: 0, last: 0,
  };
}

/** Height of the name of a level: higher levels have larger names. @param {number} below */
const titleOf = (below) => 0.8 + 0.55 * below;

/** @param {Box} one @param {number} depth */
function measure(one, depth) {
  const below = depth - one.level - 1;
  one.title = one.level < 0 ? 0 : titleOf(below);
  const margin = one.level < 0 ? 0 : MARGIN * (1 + 0.5 * below);
  if (one.cells.length) {
    const columns = columnsOf(one.cells.length);
    one.w = Math.min(columns, one.cells.length) + 2 * margin;
    one.h = Math.ceil(one.cells.length / columns) + 2 * margin + one.title;
    one.w = Math.max(one.w, 3);
    return;
  }
  for (const child of one.children) measure(child, depth);
  const gap = margin || 1.2;
  const area = one.children.reduce((sum, child) => sum + (child.w + gap) * (child.h + gap), 0);
  const widest = one.children.reduce((most, child) => Math.max(most, child.w), 0);
  const target = Math.max(widest, Math.sqrt(area * ASPECT));
  let x = 0;
  let y = 0;
  let row = 0;
  let width = 0;
  for (const child of one.children) {
    if (x > 0 && x + child.w > target) {
      x = 0;
      y += row + gap;
      row = 0;
    }
    child.x = x;
    child.y = y;
    x += child.w + gap;
    width = Math.max(width, x - gap);
    row = Math.max(row, child.h);
  }
  one.w = width + 2 * margin;
  one.h = y + row + 2 * margin + one.title;
}

/** @param {Box} one @param {number} x @param {number} y @param {Float32Array} xs @param {Float32Array} ys */
function place(one, x, y, xs, ys) {
  one.x = x;
  one.y = y;
  const below = one.level < 0 ? 0 : (one.w - innerWidth(one)) / 2;
  const left = x + below;
  const top = y + one.title + below;
  if (one.cells.length) {
    const columns = columnsOf(one.cells.length);
    one.cells.forEach((cell, at) => {
      xs[cell] = left + (at % columns) + GAP / 2;
      ys[cell] = top + Math.floor(at / columns) + GAP / 2;
    });
  }
  for (const child of one.children) place(child, left + child.x, top + child.y, xs, ys);
}

/** Columns of so many cells: about `ASPECT` times as many as rows, and if possible without a gap.
 * @param {number} cells */
function columnsOf(cells) {
  const wanted = Math.max(1, Math.ceil(Math.sqrt(cells * ASPECT)));
  for (const change of [0, 1, -1, 2, -2]) {
    if (wanted + change > 1 && cells % (wanted + change) === 0) return wanted + change;
  }
  return wanted;
}

/** @param {Box} one */
function innerWidth(one) {
  if (one.cells.length) {
    const columns = columnsOf(one.cells.length);
    return Math.min(columns, one.cells.length);
  }
  return one.children.reduce((most, child) => Math.max(most, child.x + child.w), 0);
}

/**
 * The cell at a point, or -1.
 * @param {Layout} map @param {number} x @param {number} y
 */
export function cellAt(map, x, y) {
  /** @type {Box} */
  let one = map.root;
  for (;;) {
    const inside = one.children.find((child) => contains(child, x, y));
    if (!inside) break;
    one = inside;
  }
  for (const cell of one.cells) {
    const side = map.size[cell];
    if (x >= map.x[cell] && x < map.x[cell] + side && y >= map.y[cell] && y < map.y[cell] + side) return cell;
  }
  return -1;
}

/** @param {Box} one @param {number} x @param {number} y */
const contains = (one, x, y) => x >= one.x && x < one.x + one.w && y >= one.y && y < one.y + one.h;

/**
 * The boxes of a path, the outermost first.
 * @param {Layout} map @param {string[]} path
 */
export function boxesOf(map, path) {
  const found = [];
  let one = map.root;
  for (const part of path) {
    const next = one.children.find((child) => child.name === part);
    if (!next) break;
    found.push(next);
    one = next;
  }
  return found;
}
