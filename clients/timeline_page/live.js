/** Asks the daemon twice a second what a stream heard and said, and has page.js draw it. */

const find = (id) => document.getElementById(id);
const PAUSE = 500; // milliseconds between two looks
const LIST_EVERY = 4; // looks
const HINT = "Choose a word to see its times.";
// A key stays in the fragment: it is in no request's address, and so in no log.
const key = new URLSearchParams(location.hash.slice(1)).get("key");
let looks = 0;
let drawn = ""; // which stream, at which revision

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", headers: key ? { "X-API-Key": key } : {} });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

/** The streams there are, newest first; the choice stays while its stream is there. */
async function list() {
  const streams = await ask("/debug/streams");
  const select = find("stream");
  const labels = streams.map(({ id, state }) => (state === "open" ? id : `${id} (${state})`));
  if (labels.join() === [...select.options].map((each) => each.text).join()) return;
  const chosen = select.value;
  const waited = !select.options.length;
  select.replaceChildren(...streams.map(({ id }, index) => new Option(labels[index], id)));
  if (streams.some(({ id }) => id === chosen)) select.value = chosen;
  if (waited && streams.length) find("detail").textContent = HINT;
}

async function look() {
  if (looks++ % LIST_EVERY === 0) await list();
  const id = find("stream").value;
  const follow = find("follow").checked;
  if (!id || (!follow && drawn.startsWith(`${id} `))) return;
  const facts = await ask(`/debug/streams/${encodeURIComponent(id)}`);
  if (!facts) return void (looks = 0); // it was forgotten
  if (drawn === `${id} ${facts.revision}`) return;
  drawn = `${id} ${facts.revision}`;
  find("summary").replaceChildren(...Object.entries(facts.summary).map(entry));
  document.dispatchEvent(new CustomEvent("facts", { detail: facts }));
  if (follow) find("scroll").scrollLeft = find("scroll").scrollWidth;
}

function entry([name, value]) {
  const box = document.createElement("div");
  const [term, text] = ["dt", "dd"].map((kind) => document.createElement(kind));
  term.textContent = name;
  text.textContent = value;
  box.append(term, text);
  return box;
}

async function run() {
  try {
    await look();
    document.documentElement.dataset.state = "open";
  } catch (error) {
    document.documentElement.dataset.state = "failed";
    const lost = error instanceof TypeError ? "the daemon does not answer; trying again" : error.message;
    find("detail").textContent = `${lost[0].toUpperCase()}${lost.slice(1)}.`;
    looks = 0;
  }
  setTimeout(run, PAUSE);
}

find("stream").addEventListener("change", () => (drawn = ""));
run();
