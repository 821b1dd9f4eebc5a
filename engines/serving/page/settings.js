// The settings of answers and of the page, which the browser keeps.

import { byId } from "./elements.js";

const DEFAULTS = { drafts: true, temperature: 0, most: 512, colours: true, isAtOnce: false, system: "" };
const LEAST = { temperature: 0, most: 1 }, MOST = { temperature: 2, most: 1_000_000 };

// Returns the settings, which change with the fields of the page. `compares` is off when the page opens.
export function readSettings(storage) {
  const kept = storage.settings(), settings = { compares: false };
  for (const [name, value] of Object.entries(DEFAULTS)) settings[name] = typeof kept[name] === typeof value ? kept[name] : value;
  const changed = () => {
    document.body.classList.toggle("colours", settings.colours);
    byId("compare").setAttribute("aria-pressed", String(settings.compares));
    byId("drafts").disabled = settings.compares;
    storage.saveSettings({ ...settings, compares: undefined });
  };
  for (const name of ["drafts", "colours", "isAtOnce"]) {
    const box = byId(name);
    box.checked = settings[name];
    box.addEventListener("change", () => {
      settings[name] = box.checked;
      changed();
    });
  }
  for (const name of ["temperature", "most"]) {
    const field = byId(name);
    field.value = settings[name];
    field.addEventListener("input", () => {
      const number = field.value.trim() === "" ? NaN : Number(field.value);
      if (Number.isFinite(number)) settings[name] = Math.min(MOST[name], Math.max(LEAST[name], name === "most" ? Math.floor(number) : number));
      changed();
    });
    field.addEventListener("blur", () => (field.value = settings[name]));
  }
  byId("compare").addEventListener("click", () => {
    settings.compares = !settings.compares;
    changed();
  });
  changed();
  return settings;
}
