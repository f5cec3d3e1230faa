/** A finished transcript as SubRip, WebVTT or plain text; the same cues as server/captions.py makes. */

const LINE_CHARS = 42;
const CUE_LINES = 2;
const CUE_MS = 6000;

export const FORMATS = {
  txt: { type: "text/plain", render: plain },
  srt: { type: "application/x-subrip", render: (segments) => timed(segments, ",", (text) => text) },
  vtt: { type: "text/vtt", render: (segments) => `WEBVTT\n\n${timed(segments, ".", escape)}` },
};

/** What is shown at once. No cue spans two segments, and none overlaps the next. */
export function cues(segments) {
  const made = [];
  for (const segment of segments) {
    let held = [];
    for (const piece of pieces(segment.words)) {
      if (held.length && !fits(held, piece)) {
        made.push(cue(held, made));
        held = [];
      }
      held.push(piece);
    }
    if (held.length) made.push(cue(held, made));
  }
  return made.filter((each) => each.lines.length);
}

function* pieces(words) {
  for (const word of words) {
    const text = [...clean(word.text)];
    const space = /^\s/.test(word.text) ? " " : "";
    const start = Math.round(word.start * 1000);
    const end = Math.round(word.end * 1000);
    const count = Math.ceil(text.length / LINE_CHARS);
    for (let index = 0; index < count; index++) {
      const part = text.slice(index * LINE_CHARS, (index + 1) * LINE_CHARS).join("");
      yield {
        text: (index ? "" : space) + part,
        start: start + Math.floor(((end - start) * index) / count),
        end: start + Math.floor(((end - start) * (index + 1)) / count),
      };
    }
  }
}

function fits(held, piece) {
  return piece.end - held[0].start <= CUE_MS && wrap([...held, piece]).length <= CUE_LINES;
}

function wrap(list) {
  const lines = [];
  for (const { text } of list) {
    if (lines.length && chars(lines.at(-1)) + chars(text) <= LINE_CHARS) lines[lines.length - 1] += text;
    else lines.push(text.trimStart());
  }
  return lines.filter(Boolean);
}

function cue(list, before) {
  const start = Math.max(list[0].start, before.at(-1)?.end ?? 0);
  const end = Math.min(Math.max(list.at(-1).end, start + 1), start + CUE_MS);
  return { start, end, lines: wrap(list) };
}

function timed(segments, point, text) {
  return cues(segments)
    .map(({ start, end, lines }, index) => {
      const number = point === "," ? `${index + 1}\n` : "";
      return `${number}${time(start, point)} --> ${time(end, point)}\n${lines.map(text).join("\n")}\n`;
    })
    .join("\n");
}

function plain(segments) {
  const lines = segments.map((segment) => clean(segment.text)).filter(Boolean);
  return lines.map((line) => `${line}\n`).join("");
}

/** `00:01:02.500`, or with another point. */
export function time(milliseconds, point = ".") {
  const two = (value) => String(value).padStart(2, "0");
  const seconds = Math.floor(milliseconds / 1000);
  const rest = String(milliseconds % 1000).padStart(3, "0");
  return `${two(Math.floor(seconds / 3600))}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}${point}${rest}`;
}

const chars = (text) => [...text].length;
const clean = (text) => text.split(/\s+/).filter(Boolean).join(" ");
const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
