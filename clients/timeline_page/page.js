/** What happened in one stream: waveform, speech, and each word when it was said, shown and committed. */

const find = (id) => document.getElementById(id);
const strip = find("strip");
const audio = find("audio"); // none on the live page, which is told new facts by an event
let facts = JSON.parse(find("facts")?.textContent ?? "null");
const WAVE = 24; // pixels from the top
const WAVE_HEIGHT = 110;
const WORD_HEIGHT = 30;
const DELAY_HEIGHT = 9;
let scale = Number(find("zoom").value); // pixels a second

/** Where the strip begins, in seconds of the stream. */
const from = () => facts.from ?? 0;

/** When a word was committed; one that was not yet is as late as it is now. */
const settled = (word) => word.committed ?? Math.max(facts.duration, word.end);

function place(kind, start, end, top, height) {
  const element = document.createElement(kind);
  element.style.insetInlineStart = `${(start - from()) * scale}px`;
  element.style.top = `${top}px`;
  if (end !== null) element.style.width = `${Math.max(1, (end - start) * scale)}px`;
  if (height) element.style.height = `${height}px`;
  strip.append(element);
  return element;
}

function draw() {
  if (!facts) return;
  const focused = document.activeElement?.dataset.start;
  strip.replaceChildren();
  strip.style.width = `${(Math.max(facts.duration, ...facts.words.map(settled)) - from()) * scale + 40}px`;
  ticks();
  for (const { start, end } of facts.speech) place("div", start, end, WAVE, WAVE_HEIGHT).className = "speech";
  wave();
  const below = words(WAVE + WAVE_HEIGHT + 12);
  const height = delays(below + 10) + 14;
  strip.style.height = `${height}px`;
  if (focused) strip.querySelector(`[data-start="${focused}"]`)?.focus({ preventScroll: true });
  if (!audio) return;
  const cursor = place("div", 0, null, 0);
  cursor.id = "cursor";
  move();
}

function ticks() {
  const step = [0.5, 1, 2, 5, 10, 30, 60].find((each) => each * scale >= 60) ?? 60;
  for (let at = Math.ceil(from() / step) * step; at <= facts.duration; at += step) {
    const tick = place("div", at, null, 0);
    tick.className = "tick";
    tick.textContent = `${at} s`;
  }
}

/** In several canvases, as one may not be wider than browsers allow. */
function wave() {
  const perCanvas = Math.floor(8000 / scale); // seconds
  const color = getComputedStyle(document.documentElement).getPropertyValue("--wave");
  for (let start = from(); start < facts.duration; start += perCanvas) {
    const until = Math.min(facts.duration, start + perCanvas);
    const canvas = place("canvas", start, until, WAVE, WAVE_HEIGHT);
    canvas.width = Math.ceil((until - start) * scale);
    canvas.height = WAVE_HEIGHT;
    canvas.ariaHidden = "true";
    const pen = canvas.getContext("2d");
    pen.fillStyle = color;
    for (let x = 0; x < canvas.width; x++) {
      const second = start - from() + x / scale;
      const first = Math.floor(second * facts.peaksPerSecond);
      const last = Math.max(first + 1, Math.floor((second + 1 / scale) * facts.peaksPerSecond));
      const peak = Math.max(0, ...facts.peaks.slice(first, last)) / 127;
      const half = Math.max(0.5, (Math.sqrt(peak) * WAVE_HEIGHT) / 2);
      pen.fillRect(x, WAVE_HEIGHT / 2 - half, 1, 2 * half);
    }
  }
}

/** Each word from its start; in the first lane where it does not cover another one. */
function words(top) {
  const lanes = [];
  for (const word of facts.words) {
    const button = place("button", word.start, null, top);
    button.className = word.committed === null ? "word tail" : "word";
    button.dataset.start = word.start;
    button.textContent = word.text.trim();
    button.style.minWidth = `${(word.end - word.start) * scale}px`;
    button.onclick = () => seek(word);
    button.onfocus = button.onmouseenter = () => describe(word);
    word.element = button;
    const left = (word.start - from()) * scale;
    let lane = lanes.findIndex((taken) => taken <= left);
    if (lane < 0) lane = lanes.length;
    lanes[lane] = left + button.offsetWidth + 2;
    button.style.top = `${top + lane * WORD_HEIGHT}px`;
  }
  return top + lanes.length * WORD_HEIGHT;
}

/** Below, a bar from the end of each word to when it was shown, and on to when it was committed. */
function delays(top) {
  const lanes = [];
  for (const word of facts.words) {
    let lane = lanes.findIndex((taken) => taken <= word.end);
    if (lane < 0) lane = lanes.length;
    lanes[lane] = settled(word) + 0.05;
    const shown = Math.max(word.end, word.shown);
    const at = top + lane * DELAY_HEIGHT;
    place("div", word.end, shown, at).className = "delay shown";
    place("div", shown, Math.max(shown, settled(word)), at).className = "delay committed";
  }
  return top + lanes.length * DELAY_HEIGHT;
}

function describe({ text, start, end, shown, committed, probability }) {
  const seconds = (value) => `${value.toFixed(2)} s`;
  find("detail").textContent =
    `“${text.trim()}” was said from ${seconds(start)} to ${seconds(end)}, first shown at ${seconds(shown)}, ` +
    (committed === null
      ? "not committed yet, "
      : `committed at ${seconds(committed)} (${seconds(Math.max(0, committed - end))} after its end), `) +
    `probability ${probability.toFixed(2)}.`;
}

function seek(word) {
  if (!audio) return describe(word);
  audio.currentTime = word.start;
  describe(word);
  audio.play();
}

function move() {
  const at = audio.currentTime;
  const cursor = find("cursor");
  cursor.style.insetInlineStart = `${at * scale}px`;
  for (const word of facts.words) {
    if (at >= word.start && at < word.end && !audio.paused) word.element.setAttribute("aria-current", "true");
    else word.element.removeAttribute("aria-current");
  }
  if (!audio.paused) {
    const box = find("scroll");
    const x = at * scale - box.scrollLeft;
    if (x > box.clientWidth * 0.8 || x < 0) box.scrollLeft = at * scale - box.clientWidth * 0.2;
    requestAnimationFrame(move);
  }
}

for (const event of ["play", "pause", "seeked"]) audio?.addEventListener(event, move);
find("zoom").addEventListener("input", ({ target }) => {
  scale = Number(target.value);
  draw();
});
strip.addEventListener("dblclick", (event) => {
  if (!audio) return;
  audio.currentTime = (event.clientX - strip.getBoundingClientRect().left) / scale;
});
document.addEventListener("facts", ({ detail }) => {
  facts = detail;
  draw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
