/** What the reader chose: from the address first, then from the last visit. */

const STORED = "whisper-stream";
const asked = new URLSearchParams(location.search);

const DEFAULTS = { theme: "auto", size: 1, language: "", device: "" };
export const SIZES = [0.75, 0.875, 1, 1.25, 1.5, 1.875, 2.25, 3];

/** Captions only, on nothing: for a video mixer such as OBS. */
export const overlay = asked.get("overlay") === "1";

export const settings = { ...DEFAULTS, ...stored(), ...fromAddress() };

/** Change one and remember it. An address with choices in it is for this visit only. */
export function choose(name, value) {
  settings[name] = value;
  try {
    localStorage.setItem(STORED, JSON.stringify(settings));
  } catch {
    // no storage here: the choice holds for this visit
  }
}

/** The key stays in this tab only. */
export function key(value) {
  try {
    if (value !== undefined) sessionStorage.setItem(STORED, value);
    return sessionStorage.getItem(STORED) || "";
  } catch {
    return value ?? "";
  }
}

function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(STORED)) ?? {};
    return Object.fromEntries(Object.entries(found).filter(([name]) => name in DEFAULTS));
  } catch {
    return {};
  }
}

function fromAddress() {
  const chosen = {};
  for (const name of ["language", "device"]) if (asked.has(name)) chosen[name] = asked.get(name);
  if (["light", "dark"].includes(asked.get("theme"))) chosen.theme = asked.get("theme");
  const size = Number(asked.get("size"));
  if (size >= SIZES[0] && size <= SIZES.at(-1)) chosen.size = size;
  return chosen;
}
