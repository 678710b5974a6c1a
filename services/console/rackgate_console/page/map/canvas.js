// Draws a layout on a canvas. It draws when something changed, and only what is visible. Cells that
// would be smaller than `SMALLEST` pixels are drawn as the mean of their box.

const SMALLEST = 2.5;
const SMALLEST_TITLE = 9;
const LARGEST_TITLE = 15;
const MAX_SCALE = 90;

/**
 * @typedef {import("./layout.js").Layout} Layout
 * @typedef {import("./layout.js").Box} Box
 * @typedef {import("./colors.js").Palette} Palette
 * @typedef {{fill: string, marks: string, dim: boolean}} Cell how one leaf is drawn
 * @typedef {{path: string[], label: string}} Outline a domain that is pointed out
 */

export class MapCanvas extends EventTarget {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    super();
    this.canvas = canvas;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    /** @type {Layout|null} */
    this.layout = null;
    /** @type {Cell[]} */
    this.cells = [];
    /** @type {Palette} */
    this.colors = /** @type {any} */ (null);
    /** @type {Outline[]} */
    this.outlines = [];
    this.selected = -1;
    this.scale = 1;
    this.left = 0;
    this.top = 0;
    this.width = 1;
    this.height = 1;
    this.ratio = 1;
    this.touched = false;
    this.waiting = false;
    /** Milliseconds of the last frame, for measurements. */
    this.frameMs = 0;
    this.frames = 0;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(canvas);
  }

  close() {
    this.observer.disconnect();
  }

  /** @param {Layout} layout @param {boolean} sameShape keep zoom and position */
  setLayout(layout, sameShape) {
    this.layout = layout;
    if (!sameShape || !this.touched) this.fit();
    this.draw();
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    if (!box.width || !box.height) return;
    this.ratio = devicePixelRatio || 1;
    this.width = box.width;
    this.height = box.height;
    this.canvas.width = Math.round(box.width * this.ratio);
    this.canvas.height = Math.round(box.height * this.ratio);
    if (!this.touched) this.fit();
    this.draw();
  }

  /** Show everything. */
  fit() {
    const root = this.layout?.root;
    if (!root || !root.w) return;
    const scale = Math.min((this.width - 24) / root.w, (this.height - 24) / root.h);
    this.scale = Math.min(scale, 26);
    this.left = (this.width - root.w * this.scale) / 2;
    this.top = (this.height - root.h * this.scale) / 2;
    this.touched = false;
    this.draw();
  }

  /** @param {number} factor @param {number} [x] @param {number} [y] the point that stays, in pixels */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const least = Math.min(0.02, this.scale);
    const scale = Math.min(MAX_SCALE, Math.max(least, this.scale * factor));
    this.left = x - ((x - this.left) * scale) / this.scale;
    this.top = y - ((y - this.top) * scale) / this.scale;
    this.scale = scale;
    this.touched = true;
    this.draw();
  }

  /** @param {number} x @param {number} y pixels */
  pan(x, y) {
    this.left += x;
    this.top += y;
    this.touched = true;
    this.draw();
  }

  /** Show a box as large as fits. @param {{x: number, y: number, w: number, h: number}} box */
  show(box) {
    const scale = Math.min((this.width - 60) / box.w, (this.height - 60) / box.h, 40);
    this.scale = scale;
    this.left = this.width / 2 - (box.x + box.w / 2) * scale;
    this.top = this.height / 2 - (box.y + box.h / 2) * scale;
    this.touched = true;
    this.draw();
  }

  /** Move so that a cell is visible. @param {number} cell */
  reveal(cell) {
    const map = this.layout;
    if (!map || cell < 0) return;
    if (this.scale < 8) this.zoom(8 / this.scale);
    const x = this.left + map.x[cell] * this.scale;
    const y = this.top + map.y[cell] * this.scale;
    const edge = 60;
    let dx = 0;
    let dy = 0;
    if (x < edge) dx = edge - x;
    else if (x > this.width - edge) dx = this.width - edge - x;
    if (y < edge) dy = edge - y;
    else if (y > this.height - edge) dy = this.height - edge - y;
    if (dx || dy) this.pan(dx, dy);
  }

  /** The point of an event on the map. @param {{clientX: number, clientY: number}} event */
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    return { x, y, mapX: (x - this.left) / this.scale, mapY: (y - this.top) / this.scale };
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      const started = performance.now();
      this.paint(this.context);
      this.frameMs = performance.now() - started;
      this.frames += 1;
    });
  }

  /** @param {CanvasRenderingContext2D} to */
  paint(to) {
    const { layout, colors } = this;
    to.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    if (!colors) return;
    to.fillStyle = colors.paper;
    to.fillRect(0, 0, this.width, this.height);
    if (!layout) return;
    this.paintBox(to, layout.root);
    this.paintOutlines(to);
    if (this.selected >= 0) this.outlineCell(to, this.selected);
  }

  /** @param {CanvasRenderingContext2D} to @param {Box} box */
  paintBox(to, box) {
    const x = this.left + box.x * this.scale;
    const y = this.top + box.y * this.scale;
    const w = box.w * this.scale;
    const h = box.h * this.scale;
    if (x > this.width || y > this.height || x + w < 0 || y + h < 0) return;
    if (box.level >= 0) {
      if (this.scale < SMALLEST && !box.children.length) {
        this.paintMean(to, box, x, y, w, h);
        return;
      }
      if (w > 6) {
        to.strokeStyle = this.colors.line;
        to.lineWidth = 1;
        to.strokeRect(Math.round(x) + 0.5, Math.round(y) + 0.5, Math.round(w) - 1, Math.round(h) - 1);
      }
      this.paintTitle(to, box, x, y, w);
    }
    for (const child of box.children) this.paintBox(to, child);
    if (box.cells.length) this.paintCells(to, box.cells);
  }

  /** @param {CanvasRenderingContext2D} to @param {Box} box @param {number} x @param {number} y @param {number} w @param {number} h */
  paintMean(to, box, x, y, w, h) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    let marked = 0;
    for (const cell of box.cells) {
      const { fill, marks, dim } = this.cells[cell];
      if (!dim) counts.set(fill, (counts.get(fill) ?? 0) + 1);
      if (marks) marked += 1;
    }
    const total = box.cells.length;
    let at = 0;
    // Shares of the box, so that no colour is invented.
    to.fillStyle = this.colors.none;
    to.fillRect(x, y, Math.max(1, w - 0.5), Math.max(1, h - 0.5));
    for (const [fill, number] of counts) {
      const part = (h * number) / total;
      to.fillStyle = fill;
      to.fillRect(x, y + at, Math.max(1, w - 0.5), Math.max(0.75, part));
      at += part;
    }
    if (marked && w > 2) {
      to.fillStyle = this.colors.mark;
      to.fillRect(x, y, Math.max(1, w / 4), Math.max(1, h / 6));
    }
  }

  /** @param {CanvasRenderingContext2D} to @param {number[]} cells */
  paintCells(to, cells) {
    const map = /** @type {Layout} */ (this.layout);
    const { scale } = this;
    let fill = "";
    for (const cell of cells) {
      const x = this.left + map.x[cell] * scale;
      const y = this.top + map.y[cell] * scale;
      const side = map.size[cell] * scale;
      if (x > this.width || y > this.height || x + side < 0 || y + side < 0) continue;
      const one = this.cells[cell];
      const wanted = one.dim ? this.colors.none : one.fill;
      if (wanted !== fill) to.fillStyle = fill = wanted;
      to.fillRect(x, y, side, side);
      if (one.marks) {
        this.paintMarks(to, one.marks, x, y, side);
        fill = "";
      }
      if (side > 34) {
        this.paintName(to, map.leaves[cell].name, x, y, side, one);
        fill = "";
      }
    }
  }

  /** Marks have shapes: a cross for not ready, stripes for cordoned, a dot for tainted.
   * @param {CanvasRenderingContext2D} to @param {string} marks @param {number} x @param {number} y @param {number} side */
  paintMarks(to, marks, x, y, side) {
    to.strokeStyle = this.colors.mark;
    to.lineWidth = Math.max(1, Math.min(2.5, side / 9));
    if (side >= 4) to.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    to.beginPath();
    if (marks.includes("u")) {
      to.moveTo(x, y);
      to.lineTo(x + side, y + side);
      to.moveTo(x + side, y);
      to.lineTo(x, y + side);
    }
    if (marks.includes("c")) {
      for (const part of [0.35, 0.7]) {
        to.moveTo(x, y + side * part);
        to.lineTo(x + side, y + side * part);
      }
    }
    to.stroke();
    if (marks.includes("t")) {
      to.fillStyle = this.colors.mark;
      to.beginPath();
      to.arc(x + side / 2, y + side / 2, Math.max(1, side / 6), 0, 7);
      to.fill();
    }
  }

  /** @param {CanvasRenderingContext2D} to @param {string} text @param {number} x @param {number} y @param {number} side @param {Cell} cell */
  paintName(to, text, x, y, side, cell) {
    to.save();
    to.beginPath();
    to.rect(x, y, side, side);
    to.clip();
    to.font = "10px system-ui, sans-serif";
    to.fillStyle = cell.dim ? this.colors.text : textOn(cell.fill);
    to.textBaseline = "top";
    to.fillText(text.length > 14 ? `…${text.slice(-13)}` : text, x + 3, y + 3);
    to.restore();
  }

  /** @param {CanvasRenderingContext2D} to @param {Box} box @param {number} x @param {number} y @param {number} w */
  paintTitle(to, box, x, y, w) {
    const size = Math.min(LARGEST_TITLE, box.title * this.scale * 0.72);
    if (size < SMALLEST_TITLE * 0.8 || w < 26) return;
    to.save();
    to.beginPath();
    to.rect(x, y, w, box.title * this.scale + 2);
    to.clip();
    to.font = `${box.children.length ? 600 : 400} ${size}px system-ui, sans-serif`;
    to.fillStyle = this.colors.text;
    to.textBaseline = "middle";
    const inset = Math.min(8, w * 0.06);
    to.fillText(box.name, Math.max(x, 0) + inset, y + (box.title * this.scale) / 2 + 1);
    to.restore();
  }

  /** @param {CanvasRenderingContext2D} to */
  paintOutlines(to) {
    const map = /** @type {Layout} */ (this.layout);
    for (const { path, label } of this.outlines) {
      let box = map.root;
      for (const part of path) {
        const next = box.children.find((child) => child.name === part);
        if (!next) break;
        box = next;
      }
      if (box === map.root) continue;
      const x = this.left + box.x * this.scale;
      const y = this.top + box.y * this.scale;
      to.strokeStyle = this.colors.mark;
      to.lineWidth = 3;
      to.strokeRect(x - 1, y - 1, box.w * this.scale + 2, box.h * this.scale + 2);
      to.font = "600 12px system-ui, sans-serif";
      const width = to.measureText(label).width + 8;
      to.fillStyle = this.colors.mark;
      to.fillRect(x - 2, y - 18, width, 17);
      to.fillStyle = this.colors.paper;
      to.textBaseline = "middle";
      to.fillText(label, x + 2, y - 9);
    }
  }

  /** @param {CanvasRenderingContext2D} to @param {number} cell */
  outlineCell(to, cell) {
    const map = /** @type {Layout} */ (this.layout);
    const side = map.size[cell] * this.scale;
    to.strokeStyle = this.colors.text;
    to.lineWidth = 2;
    to.strokeRect(this.left + map.x[cell] * this.scale - 2, this.top + map.y[cell] * this.scale - 2, side + 4, side + 4);
  }
}

/** Black or white, whichever is easier to read. @param {string} fill `#rrggbb` */
function textOn(fill) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(fill.slice(at, at + 2), 16) / 255);
  return 0.2126 * r ** 2.2 + 0.7152 * g ** 2.2 + 0.0722 * b ** 2.2 > 0.3 ? "#10171f" : "#ffffff";
}
