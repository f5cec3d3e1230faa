/** What the page says: every state and every error in words that tell what to do. */

/** Error codes of the microphone, the client and the server: [what is wrong, what to do]. */
const ERRORS = {
  insecure: [
    "This address may not use the microphone",
    "Browsers allow it on https:// and on localhost only. Open the page as https://, or on the machine that runs the server as http://localhost.",
  ],
  denied: [
    "The microphone is blocked for this page",
    "Allow it in the address bar's site settings (and in your system's privacy settings), then press Start again.",
  ],
  no_device: ["No microphone was found", "Plug one in, or switch it on, then press Start again."],
  gone: [
    "The chosen microphone is not there any more",
    "Plug it in again, or choose another one, then press Start again.",
  ],
  busy: [
    "The microphone cannot be used now",
    "Another program may be holding it. Close that one, or choose another microphone, then press Start again.",
  ],
  unplugged: [
    "The microphone was unplugged",
    "Everything said before is kept. Plug it in again, or choose another one, then press Start to go on.",
  ],
  too_many_streams: [
    "The server is full",
    "It captions as many streams as it can. Wait until somebody has finished, then press Start again.",
  ],
  key: [
    "The server wants a valid key",
    "Enter the key that the server's keeper gave you, then press Start again.",
  ],
  stopping: ["The server is stopping", "Wait until it is back, then press Start again."],
  unreachable: [
    "The server does not answer",
    "Check that it is running and that your network reaches it, then press Start again.",
  ],
  lost: [
    "The connection was lost for too long",
    "The text so far is kept. Press Start to go on from now.",
  ],
  idle_timeout: [
    "The server heard nothing for too long",
    "The text so far is kept. Press Start to go on from now.",
  ],
};

/** Codes that mean the same to a person. */
const SAME = {
  refused: "key",
  overloaded: "too_many_streams",
  limit_reached: "too_many_streams",
};

/** @returns {{code: string, title: string, advice: string}} */
export function errorWords(error) {
  const code = SAME[error.code] ?? error.code ?? "unknown";
  const known = ERRORS[code];
  if (known) return { code, title: known[0], advice: known[1] };
  return { code, title: "The captions have stopped", advice: sentence(error.message) };
}

export const STATES = {
  idle: "Ready",
  starting: "Starting…",
  listening: "Listening",
  reconnecting: "Reconnecting, still recording…",
  stopping: "Finishing the last words…",
  stopped: "Stopped",
  failed: "Not running",
};

export const BUTTONS = {
  idle: "Start",
  starting: "Cancel",
  listening: "Stop",
  reconnecting: "Stop",
  stopping: "Stop now",
  stopped: "Start",
  failed: "Start",
};

/** The language's name in the reader's own language. */
export function languageName(code) {
  try {
    return new Intl.DisplayNames(navigator.languages, { type: "language" }).of(code) ?? code;
  } catch {
    return code;
  }
}

function sentence(text) {
  const clean = String(text ?? "Something went wrong; the server's log says what.").trim();
  return clean.charAt(0).toUpperCase() + clean.slice(1) + (/[.!?…]$/.test(clean) ? "" : ".");
}
