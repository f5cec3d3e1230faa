/**
 * whisper-stream for JavaScript: audio in, words out, for browsers and Node 20 or newer.
 *
 *     import { connect } from "./whisper-stream.js";
 *     const stream = await connect("ws://localhost:9090", { language: "en" });
 *     stream.send(pcm);                       // 16-bit mono at 16 kHz, unless options say otherwise
 *     for await (const event of stream.events()) if (event.type === "commit") show(event.text);
 *
 * A lost connection, even before the server was ready, is opened again and goes on where it stopped.
 * The audio of the segment that is still open is kept; where the server remembers the stream, only what
 * it lacks is sent again, and where it does not (it was restarted) a new stream takes over from the last
 * closed segment. Words that were committed before are not repeated, and times go on counting from the
 * first sample.
 */

export const SUBPROTOCOL = "whisper-stream.v1.json";
const PATH = "/v1/stream";
const BYTES = { s16le: 2, f32le: 4, mulaw: 1, alaw: 1 };
const PIECE = 64 * 1024; // bytes in one frame
const IN_FLIGHT = 128 * 1024; // bytes given to the socket and not sent: the rest waits here
const EAGER = 1024 * 1024; // bytes waiting here before send() asks its caller to wait
const KEPT_SECONDS = 60; // of audio that the server holds, in case it is restarted
const BACKOFF = [0.25, 0.5, 1, 2, 4]; // seconds between attempts
const STEADY_SECONDS = 5; // a connection that lasted so long is no failed attempt
const SILENT_SECONDS = 45; // without a message while audio is unanswered: the connection is dead
const PING_SECONDS = 60;
const PROBE_SECONDS = 3; // to find out whether a server is there that refused us
const BROKEN = new Set([1001, 1006, 1012, 1013]); // close codes of a connection or a server that went away
const NO_ANSWER = "no answer";
const WATCH_SECONDS = 2; // between looks at the connection, and acknowledgements of messages
// Trying again may help: the server was busy, or broke, or forgot us.
const PASSING = new Set(
  "too_many_streams overloaded limit_reached internal idle_timeout stopping unreachable lost".split(" "),
);

/** What ended a stream. `code` is the protocol's, or `refused`, `stopping`, `unreachable`, `lost`, `closed`. */
export class StreamError extends Error {
  constructor(code, message, field = null) {
    super(message);
    this.name = "StreamError";
    this.code = code;
    this.field = field;
  }
}

/** Open a stream; resolves once the server is ready, rejects with a StreamError. */
export async function connect(url, options = {}) {
  const stream = new Stream(streamUrl(url), options);
  await stream._open();
  return stream;
}

/** Complete an address: http becomes ws, and an empty path that of the protocol. */
export function streamUrl(url) {
  let parsed;
  try {
    parsed = new URL(url ?? globalThis.location?.href, globalThis.location?.href);
  } catch {
    throw new StreamError("invalid_url", `${url} is no address; write it like ws://host:9090`);
  }
  parsed.protocol = parsed.protocol.replace(/^http/, "ws");
  if (!/^wss?:$/.test(parsed.protocol))
    throw new StreamError("invalid_url", `${url} is no address; write it like ws://host:9090`);
  if (parsed.pathname === "/") parsed.pathname = PATH;
  parsed.hash = "";
  return parsed.href;
}

/** An open stream. Made by `connect`. */
export class Stream {
  constructor(url, options) {
    const { key, giveUpAfter = 300, maxUnsent = 600, WebSocket: socketClass, ...start } = options;
    this.url = url;
    this.state = "connecting"; // then open, reconnecting, closed
    this.session = null; // the latest `ready`
    this._key = key;
    this._socketClass = socketClass;
    this._giveUpAfter = giveUpAfter;
    this._start = wireStart(start);
    this._frame = (BYTES[this._start.encoding] ?? 2) * this._start.channels;
    this._rate = this._start.sample_rate;
    this._audio = new AudioLog();
    this._maxUnsent = maxUnsent * this._rate * this._frame; // bytes
    this._marks = []; // flush and eos, each at its place in the audio, until answered
    this._sent = 0; // bytes
    this._held = 0; // bytes that the server said it holds
    this._base = 0; // bytes before the server's first sample: not 0 after a restart
    this._seq = 0; // of the last message taken in this session
    this._seen = 0; // the last one that the server was told of
    this._controls = 0; // flush and eos sent in this session
    this._story = new Story();
    this._queue = new EventQueue();
    this._drained = []; // who waits in send()
    this._flushes = 0;
    this._closed = 0; // where the last closed segment ends, in bytes
    this._ending = null; // set once close() was called
    this._pumping = null;
    this._socket = null;
    this._ready = false; // the socket may be given audio
    this._greeted = false; // the socket was open
    this._attempt = 0;
    this._lostAt = 0; // since when no connection was steady
    this._openedAt = 0;
  }

  /** Seconds of audio that the server has not acknowledged. */
  get pending() {
    return (this._audio.end - this._held) / (this._rate * this._frame);
  }

  /** Add PCM. Never loses it: while there is no connection it waits here. Resolves when more is welcome. */
  async send(pcm) {
    if (this.state === "closed" || this._ending) throw new StreamError("closed", "the stream has ended");
    this._audio.append(toBytes(pcm));
    this._bound();
    this._pump();
    while (this.state !== "closed" && this._audio.end - this._sent > EAGER)
      await new Promise((resolve) => this._drained.push(resolve));
  }

  /** Ask for everything sent so far to be committed; resolves with `flushed` once it is. */
  flush() {
    return this._mark({ type: "flush", id: `f${++this._flushes}` });
  }

  /** No more audio: resolves with `done` once the last words have come. */
  close() {
    this._ending ??= this._mark({ type: "eos" });
    return this._ending;
  }

  /** Leave at once; words that have not come are lost. */
  abort() {
    this._finish(null);
  }

  /** Do not wait for the next attempt to reconnect: try now. */
  resume() {
    if (this.state !== "reconnecting" || this._socket) return;
    clearTimeout(this._timer);
    this._attach();
  }

  /** Everything that happens, in order; ends after `done`, throws what ended the stream otherwise. */
  events() {
    return this._queue;
  }
  [Symbol.asyncIterator]() {
    return this._queue;
  }

  _open() {
    return new Promise((resolve, reject) => {
      this._opening = { resolve, reject };
      this._attach();
    });
  }

  async _attach() {
    const attempt = {};
    this._socket = attempt; // so that nobody else begins one
    let socket;
    try {
      const Socket = this._socketClass ?? globalThis.WebSocket ?? (await nodeWebSocket());
      socket = new Socket(this.url, protocols(this._key));
    } catch (error) {
      this._finish(new StreamError("invalid_url", String(error.message ?? error)));
      return;
    }
    if (this._socket !== attempt) return socket.close();
    this._socket = socket;
    this._ready = this._greeted = false;
    this._heard = Date.now();
    socket.binaryType = "arraybuffer";
    const current = (take) => (event) => this._socket === socket && take(event);
    socket.onopen = current(() => this._greet());
    socket.onmessage = current((event) => this._receive(event.data));
    socket.onclose = current((event) => {
      if (this._greeted) this._lost(event);
      else this._turnedAway(event);
    });
    socket.onerror = () => {}; // a close follows, and says as much
  }

  _greet() {
    this._greeted = true;
    const { session, token } = this.session ?? {};
    if (token) this._say({ type: "resume", session, token, seq: this._seq });
    else this._begin();
  }

  /** A stream that the server does not know: its first sample is the first one that is kept. */
  _begin() {
    this._base = this._held = this._audio.start;
    this._seq = 0;
    this._controls = 0;
    for (const mark of this._marks) mark.number = Infinity;
    this._story.restart(this._base / (this._rate * this._frame));
    this._say(this._start);
  }

  _receive(data) {
    this._heard = Date.now();
    if (typeof data !== "string") return;
    const message = JSON.parse(data);
    if (message.type === "error" && message.fatal) return this._refused(message);
    if (message.type === "resumed") return this._welcome(message);
    if (message.seq && message.seq <= this._seq) return; // told before the connection was lost
    this._seq = Math.max(this._seq, message.seq ?? 0);
    if (message.type === "ready") return this._welcome(message);
    if ("samples" in message) message.samples += this._base / this._frame;
    if (message.type === "ack") this._acknowledge(message.samples);
    if (message.type === "done" && !this._ending) return; // the server stops, we do not
    for (const event of this._story.tell(message)) this._tell(event);
  }

  _welcome(message) {
    this._ready = true;
    const again = this.session !== null;
    this.session = { ...this.session, ...message };
    if (message.type === "resumed") {
      this._held = this._base + message.bytes;
      this._controls = message.controls;
    }
    this._sent = this._held;
    for (const mark of this._marks) mark.sent = mark.number <= this._controls;
    this.state = "open";
    this._openedAt = Date.now();
    this._watch();
    const replayed = (this._audio.end - this._sent) / (this._rate * this._frame);
    this._tell(again ? { ...message, type: "resumed", replayed } : message);
    this._opening?.resolve();
    this._opening = null;
    this._pump();
  }

  _tell(event) {
    if (event.type === "segment") {
      this._closed = this._byte(event.end);
      this._trim();
    }
    this._queue.push(event);
    if (event.type === "flushed") this._answer((mark) => mark.message.id === event.id, event);
    if (event.type === "done") {
      this._answer((mark) => mark.message.type === "eos", event);
      this._finish(null);
    }
  }

  _answer(matches, event) {
    const index = this._marks.findIndex(matches);
    if (index >= 0) this._marks.splice(index, 1)[0].resolve(event);
  }

  _acknowledge(samples) {
    this._held = Math.max(this._held, samples * this._frame);
    this._trim();
  }

  /** Forget audio that no restart could need again, and never what is not acknowledged. */
  _trim() {
    const rest = this._held - KEPT_SECONDS * this._rate * this._frame;
    this._audio.dropBefore(Math.min(Math.max(this._closed, rest), this._held));
  }

  _bound() {
    const excess = this._audio.end - this._audio.start - this._maxUnsent;
    if (excess <= 0) return;
    const from = this._audio.start;
    this._audio.dropBefore(from + Math.ceil(excess / this._frame) * this._frame);
    const second = this._rate * this._frame;
    const reason = "without a connection for longer than the audio could be kept";
    this._queue.push({ type: "gap", start: from / second, end: this._audio.start / second, reason });
  }

  _byte(seconds) {
    return Math.round(seconds * this._rate) * this._frame;
  }

  _mark(message) {
    if (this.state === "closed")
      return Promise.reject(this._error ?? new StreamError("closed", "the stream has ended"));
    const answered = new Promise((resolve, reject) => {
      this._marks.push({ at: this._audio.end, message, sent: false, number: Infinity, resolve, reject });
    });
    answered.catch(() => {}); // who does not wait for it hears of the end from events()
    this._pump();
    return answered;
  }

  /** Give the socket what it takes: audio in order, flush and eos each at its place. */
  _pump() {
    if (!this._ready || this._pumping) return;
    while ((this._socket.bufferedAmount ?? 0) < IN_FLIGHT) {
      const mark = this._marks.find((each) => !each.sent);
      const piece = this._piece(Math.min(PIECE, (mark?.at ?? Infinity) - this._sent));
      if (piece) {
        this._socket.send(piece);
        this._sent += piece.length;
        this._lastSent = Date.now();
      } else if (mark) {
        mark.sent = true;
        mark.number = ++this._controls;
        this._say(mark.message);
      } else break;
    }
    if (this._audio.end - this._sent <= EAGER) for (const resolve of this._drained.splice(0)) resolve();
    if (this._sent < this._audio.end || this._marks.some((mark) => !mark.sent)) {
      this._pumping = setTimeout(() => {
        this._pumping = null;
        this._pump();
      }, 20);
    }
  }

  /** The next bytes to send. For audio that is gone there is silence, so that no time shifts. */
  _piece(most) {
    const gone = this._audio.start - this._sent;
    if (gone <= 0) return this._audio.read(this._sent, most);
    const silence = { mulaw: 0xff, alaw: 0xd5 }[this._start.encoding] ?? 0;
    return new Uint8Array(Math.min(most, gone)).fill(silence);
  }

  _say(message) {
    this._lastSent = Date.now();
    this._socket.send(JSON.stringify(message));
  }

  /** Pings an idle stream, and notices a connection that died without a word. */
  _watch() {
    clearInterval(this._watching);
    this._watching = setInterval(() => {
      const now = Date.now();
      if (this.pending > 0 && now - this._heard > SILENT_SECONDS * 1000) {
        this._lost({ code: 1006, reason: "the server has fallen silent" });
      } else if (now - this._lastSent > PING_SECONDS * 1000) this._say({ type: "ping", id: "alive" });
      if (this.session.token && this._seq > this._seen)
        this._say({ type: "ack", seq: (this._seen = this._seq) });
    }, WATCH_SECONDS * 1000);
    this._watching.unref?.(); // Node shall not stay alive for it
  }

  _refused(message) {
    if (this.state === "reconnecting" && this.session?.token && !this._ready && !PASSING.has(message.code)) {
      this.session = { ...this.session, token: null }; // begin anew
      this._problem = new StreamError("lost", "the server has forgotten the stream");
    } else this._problem = new StreamError(message.code, message.message, message.field);
  }

  /** Never opened. Browsers do not say why, so the server is asked whether it is there at all. */
  async _turnedAway({ reason }) {
    const asking = (this._socket = {}); // so that nobody else begins an attempt
    const problem = await whyRefused(this.url, reason);
    if (this._socket !== asking) return;
    this._problem = problem;
    this._lost({});
  }

  _lost({ code, reason }) {
    const text = `the connection was lost (code ${code}${reason ? `, ${reason}` : ""})`;
    const problem = this._problem ?? new StreamError("lost", text);
    this._problem = null;
    this._detach();
    // Who was let in once is refused only by a server that is just coming up.
    const passing = PASSING.has(problem.code) || problem.code === "refused";
    // What cannot be reached at all is told at once; what was, and went away, may come back.
    const opened = this.state !== "connecting" || (problem.code === "lost" && BROKEN.has(code));
    if (!opened || !passing) return this._finish(problem);
    const steady = this.state === "open" && Date.now() - this._openedAt > STEADY_SECONDS * 1000;
    if (steady) this._attempt = 0;
    if (steady || !this._lostAt) this._lostAt = Date.now();
    this.state = "reconnecting";
    const delay = BACKOFF[Math.min(this._attempt++, BACKOFF.length - 1)];
    if (Date.now() - this._lostAt + delay * 1000 > this._giveUpAfter * 1000) return this._finish(problem);
    this._queue.push({ type: "reconnecting", attempt: this._attempt, delay, reason: problem.message });
    this._timer = setTimeout(() => this._attach(), delay * 1000 * (0.8 + 0.4 * Math.random()));
  }

  _detach() {
    clearTimeout(this._pumping);
    clearInterval(this._watching);
    this._pumping = null;
    this._ready = false;
    this._socket?.close?.();
    this._socket = null;
  }

  _finish(error) {
    if (this.state === "closed") return;
    this.state = "closed";
    this._error = error;
    clearTimeout(this._timer);
    this._detach();
    this._opening?.reject(error);
    for (const mark of this._marks.splice(0)) mark.reject(error ?? new StreamError("closed", "it ended"));
    for (const resolve of this._drained.splice(0)) resolve();
    this._queue.end(error);
  }
}

/** Messages of one or several sessions, told as one stream: times, numbers and words go on. */
class Story {
  constructor() {
    this.offset = 0; // seconds before the session's first sample
    this.floor = -Infinity; // words before this were committed in an earlier session
    this.end = 0; // of the last committed word
    this.open = []; // committed words whose segment is not closed
    this.segments = 0;
    this.words = 0;
  }

  restart(offset) {
    if (this.words) this.floor = this.end;
    this.offset = offset;
  }

  *tell(message) {
    const shifted = this._shift(message);
    if (shifted.type === "partial") yield this._fresh(shifted);
    else if (shifted.type === "commit") yield* this._commit(this._fresh(shifted));
    else if (shifted.type === "segment") yield* this._segment(shifted);
    else if (shifted.type === "done") yield { ...shifted, words: this.words };
    else yield shifted;
  }

  *_commit(commit) {
    if (!commit.words.length) return;
    this.end = commit.words.at(-1).end;
    this.words += commit.words.length;
    this.open.push(...commit.words);
    yield commit;
  }

  *_segment(segment) {
    let count = segment.words.length;
    if (this.floor > -Infinity) {
      count = this.open.findIndex((word) => middle(word) > segment.end);
      if (count < 0) count = this.open.length;
    }
    const words = this.open.splice(0, count);
    if (!words.length) return;
    const text = words.map((word) => word.text).join("");
    const end = Math.max(segment.end, words.at(-1).end);
    yield { ...segment, id: ++this.segments, words, text, start: words[0].start, end };
  }

  /** Without the words that were committed before the session began. */
  _fresh(message) {
    if (this.floor === -Infinity) return message;
    const words = message.words
      .filter((word) => middle(word) > this.floor)
      .map((word) => ({ ...word, start: Math.max(word.start, this.floor) }));
    return { ...message, words, text: words.map((word) => word.text).join("") };
  }

  _shift(message) {
    if (!this.offset) return message;
    const moved = { ...message };
    for (const name of ["start", "end", "time", "duration"])
      if (typeof moved[name] === "number") moved[name] = round(moved[name] + this.offset);
    if (moved.words?.map)
      moved.words = moved.words.map((word) => ({
        ...word,
        start: round(word.start + this.offset),
        end: round(word.end + this.offset),
      }));
    return moved;
  }
}

/** Audio by its absolute byte position; the front is forgotten as it is no longer needed. */
class AudioLog {
  start = 0;
  end = 0;
  _chunks = []; // [position, bytes]

  append(bytes) {
    if (!bytes.length) return;
    this._chunks.push([this.end, bytes]);
    this.end += bytes.length;
  }

  read(from, most) {
    if (from >= this.end || most <= 0) return null;
    let low = 0; // the last chunk that begins at or before `from`
    for (let high = this._chunks.length; high - low > 1; ) {
      const between = (low + high) >> 1;
      if (this._chunks[between][0] <= from) low = between;
      else high = between;
    }
    const [at, bytes] = this._chunks[low];
    return bytes.subarray(from - at, Math.min(bytes.length, from - at + most));
  }

  dropBefore(position) {
    if (position <= this.start) return;
    this.start = Math.min(position, this.end);
    let gone = 0;
    while (gone < this._chunks.length && this._chunks[gone][0] + this._chunks[gone][1].length <= this.start)
      gone += 1;
    this._chunks.splice(0, gone);
  }
}

/** An async iterator that is filled from elsewhere. Of partials that wait, only the newest stays. */
class EventQueue {
  _waiting = [];
  _events = [];
  _ended = null;

  push(event) {
    if (this._ended) return;
    if (this._waiting.length) return this._waiting.shift().resolve({ value: event, done: false });
    if (event.type === "partial" && this._events.at(-1)?.type === "partial") this._events.pop();
    this._events.push(event);
  }

  end(error) {
    this._ended = { error };
    for (const each of this._waiting.splice(0))
      if (error) each.reject(error);
      else each.resolve({ value: undefined, done: true });
  }

  next() {
    if (this._events.length) return Promise.resolve({ value: this._events.shift(), done: false });
    if (!this._ended) return new Promise((resolve, reject) => this._waiting.push({ resolve, reject }));
    const { error } = this._ended;
    this._ended = { error: null }; // thrown once
    return error ? Promise.reject(error) : Promise.resolve({ value: undefined, done: true });
  }

  return() {
    return Promise.resolve({ value: undefined, done: true });
  }

  [Symbol.asyncIterator]() {
    return this;
  }
}

function wireStart(options) {
  const start = { type: "start", encoding: "s16le", sample_rate: 16000, channels: 1, resume: true };
  const names = { sampleRate: "sample_rate", endpointSilence: "endpoint_silence" };
  for (const [name, value] of Object.entries(options))
    if (value !== undefined && value !== null) start[names[name] ?? name] = value;
  return start;
}

/** A browser can set no header on a websocket, so the key travels as a second subprotocol. */
function protocols(key) {
  return key ? [SUBPROTOCOL, `whisper-stream.key.${key}`] : [SUBPROTOCOL];
}

async function whyRefused(url, answer) {
  const refused = new StreamError("refused", "the server refused the connection; it may want a valid key");
  const stopping = new StreamError("stopping", "the server is stopping; try again in a moment");
  if (/HTTP 40[13]/.test(answer)) return refused;
  if (/HTTP 503/.test(answer)) return stopping;
  try {
    if (answer === NO_ANSWER) throw new Error(answer);
    const signal = AbortSignal.timeout(PROBE_SECONDS * 1000);
    const health = await fetch(new URL("/healthz", url.replace(/^ws/, "http")), { cache: "no-store", signal });
    if (health.ok) return (await health.json()).status === "stopping" ? stopping : refused;
  } catch {
    // nobody is there
  }
  return new StreamError("unreachable", `${url} cannot be reached; check the address, and that the server runs`);
}

/** A copy, so that the caller may use its buffer again. */
function toBytes(pcm) {
  if (pcm instanceof ArrayBuffer) return new Uint8Array(pcm.slice(0));
  if (ArrayBuffer.isView(pcm))
    return new Uint8Array(pcm.buffer.slice(pcm.byteOffset, pcm.byteOffset + pcm.byteLength));
  throw new TypeError("audio must be an ArrayBuffer or a typed array of PCM");
}

const middle = (word) => (word.start + word.end) / 2;
const round = (seconds) => Math.round(seconds * 1000) / 1000;

/** Node 20 has no WebSocket of its own; this is as much of RFC 6455 as a client needs. */
async function nodeWebSocket() {
  const [http, https, crypto] = await Promise.all(
    ["node:http", "node:https", "node:crypto"].map((name) => import(name)),
  );
  return class NodeWebSocket {
    constructor(url, offered) {
      const { protocol } = new URL(url);
      const request = (protocol === "wss:" ? https : http).request(url.replace(/^ws/, "http"), {
        headers: {
          Connection: "Upgrade",
          Upgrade: "websocket",
          "Sec-WebSocket-Version": "13",
          "Sec-WebSocket-Key": crypto.randomBytes(16).toString("base64"),
          "Sec-WebSocket-Protocol": offered.join(", "),
        },
      });
      this._parts = []; // of a fragmented message
      this._unread = Buffer.alloc(0);
      request.on("upgrade", (_, socket, head) => this._upgraded(socket, head));
      request.on("response", (response) => {
        response.resume();
        this._closed(1006, `HTTP ${response.statusCode}`);
      });
      request.on("error", () => this._closed(1006, NO_ANSWER));
      request.end();
      this._request = request;
    }

    get bufferedAmount() {
      return this._socket?.writableLength ?? 0;
    }

    send(data) {
      if (typeof data === "string") this._write(1, Buffer.from(data));
      else this._write(2, Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    }

    close() {
      if (this._socket) this._write(8, Buffer.from([0x03, 0xe8])); // 1000
      this._socket?.end();
      if (!this._socket) this._request.destroy();
    }

    _upgraded(socket, head) {
      this._socket = socket.setNoDelay(true);
      socket.on("data", (data) => this._read(data));
      socket.on("error", () => {}); // a close follows
      socket.on("close", () => this._closed(1006, ""));
      this.onopen?.({});
      if (head.length) this._read(head);
    }

    _closed(code, reason) {
      if (this._over) return;
      this._over = true;
      this._socket?.end();
      this.onclose?.({ code, reason });
    }

    _write(opcode, payload) {
      if (this._over) return;
      const size = payload.length;
      const wide = size < 126 ? 0 : size < 65536 ? 2 : 8;
      const head = Buffer.alloc(2 + wide);
      head[0] = 0x80 | opcode;
      head[1] = 0x80 | (wide === 0 ? size : wide === 2 ? 126 : 127);
      if (wide === 2) head.writeUInt16BE(size, 2);
      if (wide === 8) head.writeBigUInt64BE(BigInt(size), 2);
      const mask = crypto.randomBytes(4);
      const masked = Buffer.from(payload);
      for (let at = 0; at < size; at++) masked[at] ^= mask[at & 3];
      this._socket.write(Buffer.concat([head, mask, masked]));
    }

    _read(data) {
      this._unread = this._unread.length ? Buffer.concat([this._unread, data]) : data;
      for (let frame; !this._over && (frame = this._next()); ) this._take(frame);
    }

    _next() {
      const bytes = this._unread;
      if (bytes.length < 2) return null;
      const short = bytes[1] & 0x7f;
      const at = 2 + (short === 126 ? 2 : short === 127 ? 8 : 0);
      if (bytes.length < at) return null;
      const size = short === 126 ? bytes.readUInt16BE(2) : short === 127 ? Number(bytes.readBigUInt64BE(2)) : short;
      if (bytes.length < at + size) return null;
      this._unread = bytes.subarray(at + size);
      return { last: bytes[0] >> 7, opcode: bytes[0] & 15, payload: bytes.subarray(at, at + size) };
    }

    _take({ last, opcode, payload }) {
      if (opcode === 8)
        return this._closed(payload.length > 1 ? payload.readUInt16BE(0) : 1005, payload.toString("utf8", 2));
      if (opcode === 9) return this._write(10, payload);
      if (opcode === 10) return;
      if (opcode) this._kind = opcode;
      this._parts.push(payload);
      if (!last) return;
      const whole = Buffer.concat(this._parts.splice(0));
      this.onmessage?.({ data: this._kind === 1 ? whole.toString() : new Uint8Array(whole).buffer });
    }
  };
}
