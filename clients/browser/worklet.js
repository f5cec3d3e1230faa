/** In the audio thread: 16-bit samples in pieces of a tenth of a second, with how loud they were. */
class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Int16Array(Math.round(sampleRate / 10));
    this.filled = 0;
    this.peak = 0;
  }

  process([channels]) {
    if (!channels.length) return true;
    const [first, second] = channels;
    for (let at = 0; at < first.length; at++) {
      const sample = second ? (first[at] + second[at]) / 2 : first[at];
      const level = Math.abs(sample);
      if (level > this.peak) this.peak = level;
      this.piece[this.filled++] = Math.max(-32768, Math.min(32767, Math.round(sample * 32768)));
      if (this.filled === this.piece.length) this.hand();
    }
    return true;
  }

  hand() {
    const { piece, peak } = this;
    this.port.postMessage({ pcm: piece, peak }, [piece.buffer]);
    this.piece = new Int16Array(Math.round(sampleRate / 10));
    this.filled = 0;
    this.peak = 0;
  }
}

registerProcessor("capture", Capture);
