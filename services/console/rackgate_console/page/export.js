// Downloads: the map as PNG or SVG, and what a view shows as JSON.

import { h } from "./dom.js";

/** @param {Blob} blob @param {string} file */
function download(blob, file) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** @param {() => any} read @param {string} file */
export function jsonButton(read, file) {
  return h("button", {
    type: "button", title: "Download as JSON",
    onclick: () => download(new Blob([JSON.stringify(read(), null, 1)], { type: "application/json" }), `rackgate-${file}.json`),
  }, "JSON");
}

/** @param {import("./map/canvas.js").MapCanvas} map @param {string} file */
export function canvasButton(map, file) {
  return h("button", {
    type: "button", title: "Download the picture as PNG",
    onclick: () => map.canvas.toBlob((blob) => blob && download(blob, `rackgate-${file}.png`), "image/png"),
  }, "PNG");
}

/** @param {import("./map/canvas.js").MapCanvas} map @param {string} file */
export function svgButton(map, file) {
  return h("button", {
    type: "button", title: "Download the picture as SVG",
    onclick: () => download(new Blob([svgOf(map)], { type: "image/svg+xml" }), `rackgate-${file}.svg`),
  }, "SVG");
}

/** @param {string} text */
const escaped = (text) => text.replace(/[&<>"]/g, (one) => `&#${one.charCodeAt(0)};`);

/**
 * The whole map as SVG.
 * @param {import("./map/canvas.js").MapCanvas} map
 */
export function svgOf(map) {
  const placed = map.layout;
  if (!placed) return "";
  const { root } = placed;
  const { colors } = map;
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 ${root.w + 2} ${root.h + 2}" font-family="sans-serif">`,
    `<rect x="-1" y="-1" width="${root.w + 2}" height="${root.h + 2}" fill="${colors.paper}"/>`,
  ];
  /** @param {import("./map/layout.js").Box} box */
  const draw = (box) => {
    if (box.level >= 0) {
      parts.push(`<rect x="${box.x}" y="${box.y}" width="${box.w}" height="${box.h}" fill="none" stroke="${colors.line}" stroke-width=".08"/>`);
      parts.push(`<text x="${box.x + 0.3}" y="${box.y + box.title * 0.72}" font-size="${box.title * 0.65}" fill="${colors.text}">${escaped(box.name)}</text>`);
    }
    for (const cell of box.cells) {
      const { fill, marks } = map.cells[cell];
      const side = placed.size[cell];
      const [x, y] = [placed.x[cell], placed.y[cell]];
      const leaf = placed.leaves[cell];
      parts.push(`<rect x="${x}" y="${y}" width="${side}" height="${side}" fill="${fill}"><title>${escaped(leaf.name)}</title></rect>`);
      if (marks) parts.push(`<path d="M${x} ${y}l${side} ${side}M${x + side} ${y}l${-side} ${side}" stroke="${colors.mark}" stroke-width=".1"/>`);
    }
    box.children.forEach(draw);
  };
  draw(root);
  return `${parts.join("")}</svg>`;
}
