/** The page: its controls, and what they do. */

import { FORMATS } from "./captions.js";
import { devices } from "./microphone.js";
import { Recorder } from "./recorder.js";
import { choose, key, overlay, settings, SIZES } from "./settings.js";
import { TranscriptView } from "./transcript.js";
import { BUTTONS, errorWords, languageName, STATES } from "./words.js";

const find = (id) => document.getElementById(id);
const root = document.documentElement;
const reader = find("reader");
const view = new TranscriptView(find("transcript"), find("spoken"));
const recorder = new Recorder(changed, happened, level);
const THEMES = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };
const ICONS = {
  auto: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18M9.500 5v14M7 7.500v9",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.400 1.400M17.600 17.600 19 19M5 19l1.400-1.400M17.600 6.400 19 5",
  dark: "M20 14.500A8 8 0 0 1 9.500 4a8 8 0 1 0 10.500 10.500z",
};
let language = ""; // heard in this run
let behind = 0; // seconds
let awake = null; // keeps the screen on

// ---- the run ----

function changed(state, error) {
  root.dataset.state = state;
  const button = find("start");
  button.textContent = BUTTONS[state];
  button.toggleAttribute("data-running", recorder.running);
  for (const id of ["device", "language"]) find(id).disabled = recorder.running || find(id).length < 2;
  if (state === "starting") language = "";
  if (state === "listening") refreshDevices();
  if (!recorder.running) view.end(recorder.seconds);
  behind = 0;
  showStatus();
  showProblem(error);
  showSaves();
  keepAwake(recorder.running);
}

function happened(event) {
  if (event.type === "language") language = event.language;
  if (event.type === "lag") behind = event.behind;
  if (event.type === "commit" || event.type === "segment") behind = 0;
  if (view.add(event)) follow();
  if (event.type === "commit") showSaves();
  showStatus();
}

function level(peak) {
  const decibels = 20 * Math.log10(Math.max(peak, 1e-4)); // -80 to 0
  find("meter").firstElementChild.style.transform = `scaleX(${Math.max(0, 1 + decibels / 60).toFixed(3)})`;
}

function start() {
  if (recorder.running) return recorder.stop();
  const { device } = settings;
  recorder.start({ device, language: settings.language || undefined, key: key() || undefined });
}

// ---- what is said ----

function showStatus() {
  const details = [];
  if (recorder.state === "listening" && language) details.push(languageName(language));
  if (recorder.state === "listening" && behind >= 1) details.push(`${behind.toFixed(0)} s behind`);
  const text = [STATES[recorder.state], ...details].join(" · ");
  if (find("status").textContent !== text) find("status").textContent = text;
}

function showProblem(error) {
  const problem = find("problem");
  problem.hidden = !error;
  if (!error) return;
  const { code, title, advice } = errorWords(error);
  problem.dataset.code = code;
  find("problem-title").textContent = title;
  find("problem-advice").textContent = advice;
  if (code === "key" && !overlay) askKey();
}

function showSaves() {
  for (const button of document.querySelectorAll("[data-format]")) button.disabled = view.empty;
  find("clear").disabled = view.empty || recorder.running;
  find("welcome").hidden = !view.empty || recorder.running;
}

// ---- reading ----

let following = true;

function follow() {
  if (following) reader.scrollTop = reader.scrollHeight;
  find("latest").hidden = following;
}

reader.addEventListener("scroll", () => {
  following = reader.scrollHeight - reader.scrollTop - reader.clientHeight < 60;
  find("latest").hidden = following;
});
new ResizeObserver(follow).observe(reader);

find("latest").addEventListener("click", () => {
  following = true;
  follow();
  reader.focus({ preventScroll: true });
});

// ---- choices ----

async function refreshDevices() {
  const select = find("device");
  const found = (await devices()).filter(({ id }) => id !== "default");
  select.replaceChildren(new Option("System default", ""), ...found.map(({ id, name }) => new Option(name, id)));
  select.value = found.some(({ id }) => id === settings.device) ? settings.device : "";
  if (found.length && !select.value) settings.device = "";
  select.disabled = recorder.running;
}

async function loadFacts() {
  const facts = await (await fetch("page.json")).json();
  find("model").textContent = `${facts.model} · whisper-stream ${facts.version}`;
  const select = find("language");
  if (!facts.languages.length) {
    select.replaceChildren(new Option(languageName("en"), ""));
    select.disabled = true;
    settings.language = "";
    return;
  }
  const named = facts.languages.map((code) => [languageName(code), code]);
  named.sort(([one], [other]) => one.localeCompare(other));
  select.append(...named.map(([name, code]) => new Option(name, code)));
  select.value = facts.languages.includes(settings.language) ? settings.language : "";
  settings.language = select.value;
  select.disabled = recorder.running;
}

function showTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = settings.theme === "auto" ? system : settings.theme;
  const button = find("theme");
  button.ariaLabel = button.title = THEMES[settings.theme];
  const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  icon.setAttribute("viewBox", "0 0 24 24");
  icon.setAttribute("aria-hidden", "true");
  icon.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  icon.firstChild.setAttribute("d", ICONS[settings.theme]);
  button.replaceChildren(icon);
}

function resize(step) {
  const nearest = SIZES.reduce((best, size) => (Math.abs(size - settings.size) < Math.abs(best - settings.size) ? size : best));
  const index = Math.max(0, Math.min(SIZES.length - 1, SIZES.indexOf(nearest) + step));
  if (step) choose("size", SIZES[index]);
  root.style.setProperty("--scale", settings.size);
  find("smaller").disabled = settings.size <= SIZES[0];
  find("larger").disabled = settings.size >= SIZES.at(-1);
  follow();
}

function askKey() {
  find("key").value = key();
  find("key-dialog").returnValue = "";
  find("key-dialog").showModal();
}

function save(format) {
  const { type, render } = FORMATS[format];
  const link = document.createElement("a");
  const stamp = new Date(Date.now() - new Date().getTimezoneOffset() * 60000).toISOString();
  link.download = `captions-${stamp.slice(0, 16).replace(/[T:]/g, "-")}.${format}`;
  link.href = URL.createObjectURL(new Blob([render(view.complete())], { type: `${type};charset=utf-8` }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function keepAwake(wanted) {
  if (!wanted) {
    awake?.release();
    awake = null;
  } else if (!awake && document.visibilityState === "visible") {
    awake = (await navigator.wakeLock?.request("screen").catch(() => null)) ?? null;
  }
}

// ---- events ----

find("start").addEventListener("click", start);
addEventListener("keydown", (event) => {
  if (event.ctrlKey && event.key === "Enter" && !event.repeat) start();
});
find("smaller").addEventListener("click", () => resize(-1));
find("larger").addEventListener("click", () => resize(1));
find("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  choose("theme", names[(names.indexOf(settings.theme) + 1) % names.length]);
  showTheme();
});
find("fullscreen").addEventListener("click", () => root.requestFullscreen?.());
find("open-key").addEventListener("click", askKey);
find("key-dialog").addEventListener("close", () => {
  if (find("key-dialog").returnValue === "save") key(find("key").value.trim());
});
find("device").addEventListener("change", ({ target }) => choose("device", target.value));
find("language").addEventListener("change", ({ target }) => choose("language", target.value));
find("clear").addEventListener("click", () => {
  view.clear();
  showSaves();
  find("start").focus();
});
for (const button of document.querySelectorAll("[data-format]"))
  button.addEventListener("click", () => save(button.dataset.format));
document.addEventListener("fullscreenchange", () => {
  if (document.fullscreenElement) root.dataset.view = "screen";
  else delete root.dataset.view;
  following = true;
  follow();
});
document.addEventListener("visibilitychange", () => keepAwake(recorder.running));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
navigator.mediaDevices?.addEventListener("devicechange", refreshDevices);
addEventListener("online", () => recorder.retry());
addEventListener("beforeunload", (event) => {
  if (recorder.running) event.preventDefault(); // "leave the page?": the words would be lost
});

// ---- begin ----

showTheme();
resize(0);
if (overlay) root.dataset.view = "overlay";
refreshDevices();
changed("idle");
await loadFacts().catch(() => {});
if (!globalThis.isSecureContext) showProblem({ code: "insecure" });
else if (overlay) start();
