// Light or dark: as the system has it, unless the URL says otherwise.

import { go, read } from "./url.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => (read().theme ? read().theme === "dark" : dark.matches);

/** @param {HTMLElement} button @param {() => void} onChange */
export function connect(button, onChange) {
  const apply = () => {
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  };
  button.addEventListener("click", () => go({ theme: isDark() ? "light" : "dark" }, true));
  dark.addEventListener("change", () => {
    apply();
    onChange();
  });
  addEventListener("hashchange", apply);
  apply();
}
