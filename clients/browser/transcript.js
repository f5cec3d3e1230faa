/** The transcript on the page: closed segments, committed words after them, and the light tail. */

const SPOKEN_LINES = 20; // kept for a screen reader

export class TranscriptView {
  /**
   * @param {HTMLOListElement} list gets one item for each segment
   * @param {HTMLElement} spoken a live region: commits only, as the tail would be read again and again
   */
  constructor(list, spoken) {
    this.segments = [];
    this._list = list;
    this._spoken = spoken;
    this._open = null; // the last item, whose segment is not closed yet
    this._words = [];
    this._offset = 0; // seconds of the streams before this one
  }

  get empty() {
    return !this.segments.length && !this._words.length;
  }

  /** Everything committed; words that no segment closed as one more. */
  complete() {
    return this._words.length ? [...this.segments, this._segment(this._words)] : this.segments;
  }

  add(event) {
    if (event.type === "commit") this._commit(event.words.map((word) => this._moved(word)));
    else if (event.type === "partial") this._tail(event.text);
    else if (event.type === "segment") this._close(event.words.length);
    else if (event.type === "gap") this._gap(event);
    else return false;
    return true;
  }

  /** The stream has ended: what it left open is closed, and the next one's times follow. */
  end(seconds) {
    this._tail("");
    if (this._words.length) this._close(this._words.length);
    this._open?.remove();
    this._open = null;
    this._offset += seconds;
  }

  clear() {
    this.segments = [];
    this._words = [];
    this._open = null;
    this._offset = 0;
    this._list.replaceChildren();
    this._spoken.replaceChildren();
  }

  _moved(word) {
    return { ...word, start: word.start + this._offset, end: word.end + this._offset };
  }

  _segment(words) {
    return { words, text: words.map((word) => word.text).join(""), start: words[0].start, end: words.at(-1).end };
  }

  _commit(words) {
    this._words.push(...words);
    const { time, solid, tail } = this._item();
    time.textContent = clock(this._words[0].start);
    solid.textContent = this._segment(this._words).text.trimStart();
    tail.textContent = "";
    const line = document.createElement("p");
    line.textContent = words.map((word) => word.text).join("");
    this._spoken.append(line);
    while (this._spoken.childElementCount > SPOKEN_LINES) this._spoken.firstElementChild.remove();
  }

  _tail(text) {
    if (!text && !this._open) return;
    const { solid, tail } = this._item();
    tail.textContent = solid.textContent ? text : text.trimStart();
  }

  _close(count) {
    const words = this._words.splice(0, count);
    if (!words.length) return;
    const segment = this._segment(words);
    this.segments.push(segment);
    const { time, solid, tail } = this._item();
    time.textContent = clock(segment.start);
    solid.textContent = segment.text.trim();
    tail.textContent = "";
    this._open = null;
    if (this._words.length) this._item().solid.textContent = this._segment(this._words).text.trimStart();
  }

  _gap({ start, end, reason }) {
    const item = document.createElement("li");
    item.className = "gap";
    item.textContent = `${clock(start + this._offset)} to ${clock(end + this._offset)} is missing: ${reason}`;
    this._list.insertBefore(item, this._open);
  }

  _item() {
    if (!this._open) {
      this._open = document.createElement("li");
      const time = document.createElement("time");
      const text = document.createElement("p");
      const solid = document.createElement("span");
      const tail = document.createElement("span");
      tail.className = "tail";
      tail.ariaHidden = "true";
      text.append(solid, tail);
      this._open.append(time, text);
      this._list.append(this._open);
    }
    const [time, text] = this._open.children;
    return { time, solid: text.children[0], tail: text.children[1] };
  }
}

/** `1:02`, with hours from one hour on. */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  const two = (value) => String(value).padStart(2, "0");
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}:${two(whole % 60)}`;
  return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)}`;
}
