// Colours of cells. The scale is safe for colour-blind eyes (after cividis), and its order is that of
// brightness. Categories are eight colours that differ in brightness, too; names are in the tooltip.

const LIGHT = { empty: "#e8edf2", full: "#13294b", line: "#c3ccd6", text: "#23303d", edge: "#8896a5", paper: "#ffffff", mark: "#b3261e", ok: "#9fc5b3", none: "#eceff3" };
const DARK = { empty: "#24303d", full: "#f4d35e", line: "#3a4755", text: "#dbe4ee", edge: "#6d7d8d", paper: "#12181f", mark: "#ff8a80", ok: "#2f6b54", none: "#1d2630" };
const CATEGORIES_LIGHT = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7a00", "#5b4b8a"];
const CATEGORIES_DARK = ["#4aa3df", "#f0b63c", "#35c79c", "#e29cc4", "#8fd0f5", "#ff8f4a", "#d8c840", "#a99ae0"];
const STEPS_LIGHT = ["#e6eef6", "#c6d9ea", "#9fc0dc", "#6f9fc8", "#4a7fb0", "#2f6295", "#1d4877", "#13305a"];
const STEPS_DARK = ["#1d2a3a", "#26405c", "#32597d", "#47749a", "#6b8f9f", "#9fa887", "#cfbf63", "#f4d35e"];

/** @param {boolean} dark */
export function palette(dark) {
  return {
    ...(dark ? DARK : LIGHT),
    categories: dark ? CATEGORIES_DARK : CATEGORIES_LIGHT,
    steps: dark ? STEPS_DARK : STEPS_LIGHT,
  };
}

/** @typedef {ReturnType<typeof palette>} Palette */

/** @param {Palette} colors @param {number} share used by allocatable */
export function ofShare(colors, share) {
  if (!(share > 0)) return colors.steps[0];
  const at = Math.min(colors.steps.length - 1, 1 + Math.floor(share * (colors.steps.length - 1.001)));
  return colors.steps[at];
}

/** Equal names have equal colours. @param {Palette} colors @param {string} name */
export function ofName(colors, name) {
  let hash = 7;
  for (let at = 0; at < name.length; at += 1) hash = (hash * 31 + name.charCodeAt(at)) | 0;
  return colors.categories[Math.abs(hash) % colors.categories.length];
}
