/** From the microphone to the server and back: one run from Start to Stop, as a state machine. */

import { capture } from "./microphone.js";
import { connect } from "./whisper-stream.js";

export class Recorder {
  /**
   * @param {(state: string, error?: Error) => void} changed
   * @param {(event: object) => void} happened every event of the stream
   * @param {(peak: number) => void} level how loud the last tenth of a second was, 0 to 1
   */
  constructor(changed, happened, level) {
    this.state = "idle"; // starting, listening, reconnecting, stopping, stopped, failed
    this.seconds = 0; // of audio in this run
    this._changed = changed;
    this._happened = happened;
    this._level = level;
  }

  get running() {
    return !["idle", "stopped", "failed"].includes(this.state);
  }

  /** Options are those of `connect`, and `device`. Errors are told by the state `failed`. */
  async start({ device, ...options }) {
    const run = (this._run = { held: [] });
    this.seconds = 0;
    this._set("starting");
    try {
      // What is said while the connection opens is held, not lost.
      const heard = (pcm, peak) => this._hear(run, pcm, peak);
      run.microphone = await capture(device, heard, () => this._unplugged(run));
      if (this._run !== run) return this._release(run);
      const stream = await connect(null, { ...options, sampleRate: run.microphone.rate });
      run.stream = stream;
      if (this._run !== run) return this._release(run);
      for (const pcm of run.held.splice(0)) this._send(run, pcm);
      this._set("listening");
      if (run.ended) stream.close();
      await this._follow(run);
    } catch (error) {
      if (this._run === run) this._end(run, "failed", error);
    }
  }

  /** Stop politely: the last words still come. A second time: leave at once. */
  stop() {
    const run = this._run;
    if (this.state === "listening" || this.state === "reconnecting") {
      run.microphone.stop();
      this._level(0);
      this._set("stopping");
      run.stream.close();
    } else if (this.running) this._end(run, "stopped");
  }

  /** The network is back, as far as anybody knows. */
  retry() {
    this._run?.stream?.resume();
  }

  async _follow(run) {
    for await (const event of run.stream.events()) {
      if (this._run !== run) return;
      if (event.type === "reconnecting" && this.state === "listening") this._set("reconnecting");
      if (event.type === "resumed" && this.state === "reconnecting") this._set("listening");
      this._happened(event);
    }
    if (this._run === run) this._end(run, run.ended ? "failed" : "stopped", run.ended);
  }

  _hear(run, pcm, peak) {
    this._level(peak);
    if (run.stream) this._send(run, pcm);
    else run.held.push(pcm);
  }

  _send(run, pcm) {
    this.seconds += pcm.length / run.microphone.rate;
    run.stream.send(pcm).catch(() => {}); // its end is told by events()
  }

  _unplugged(run) {
    if (this._run !== run) return;
    run.ended = Object.assign(new Error("unplugged"), { code: "unplugged" });
    this._level(0);
    if (!run.stream) return;
    this._set("stopping");
    run.stream.close();
  }

  _end(run, state, error) {
    this._run = null;
    this._release(run);
    this._level(0);
    this._set(state, error);
  }

  _release(run) {
    run.microphone?.stop();
    run.stream?.abort();
  }

  _set(state, error) {
    this.state = state;
    this._changed(state, error);
  }
}
