/** Types of whisper-stream.js. Times are seconds from the first sample that was sent. */

export declare const SUBPROTOCOL: "whisper-stream.v1.json";

export interface Options {
  /** How the samples that are sent lie in memory. Default `s16le`. */
  encoding?: "s16le" | "f32le" | "mulaw" | "alaw";
  /** Samples per second and channel, 8000 to 48000. Default 16000. */
  sampleRate?: number;
  /** 1, or 2 interleaved. Default 1. */
  channels?: 1 | 2;
  /** ISO 639-1 code; left out: detected. */
  language?: string | null;
  task?: "transcribe" | "translate";
  /** Context or vocabulary to expect. */
  prompt?: string;
  /** Codes of the languages that may be detected; none: any. */
  languages?: string[];
  /** Words to expect, such as names. */
  hotwords?: string;
  /** Seconds of silence that end an utterance. */
  endpointSilence?: number;
  /** The server's API key, if it asks for one. */
  key?: string;
  /** Seconds without a connection after which the stream fails. Default 300. */
  giveUpAfter?: number;
  /** Seconds of audio to keep while there is no connection. Default 600. */
  maxUnsent?: number;
  /** Another WebSocket class, for example one that goes through a proxy. */
  WebSocket?: new (url: string, protocols: string[]) => WebSocket;
}

/** A word and the punctuation attached to it, with its leading space. */
export interface Word {
  text: string;
  start: number;
  end: number;
  /** Between 0 and 1. */
  probability: number;
}

export interface Ready {
  type: "ready";
  session: string;
  model: string;
  language: string | null;
  task: string;
  encoding: string;
  sample_rate: number;
  channels: number;
  /** Opens the stream's transcript, and resumes it; a secret. */
  token?: string;
}
export interface SpeechStarted {
  type: "speech_started";
  time: number;
}
export interface SpeechStopped {
  type: "speech_stopped";
  time: number;
}
/** The unstable tail after all committed words; replaces the one before. */
export interface Partial {
  type: "partial";
  text: string;
  words: Word[];
}
/** Words that never change, in order after all words committed before. */
export interface Commit {
  type: "commit";
  text: string;
  words: Word[];
}
/** A closed utterance; its words were all committed before. */
export interface Segment {
  type: "segment";
  id: number;
  text: string;
  start: number;
  end: number;
  language: string;
  words: Word[];
  avg_logprob: number;
  no_speech_prob: number;
  compression_ratio: number;
  temperature: number;
}
export interface Language {
  type: "language";
  language: string;
  probability: number;
  time: number;
}
export interface Flushed {
  type: "flushed";
  id: string;
  time: number;
}
export interface Lag {
  type: "lag";
  behind: number;
  interval: number;
}
/** Audio between these times was not transcribed, and why. */
export interface Gap {
  type: "gap";
  start: number;
  end: number;
  reason: string;
}
export interface Warning {
  type: "warning";
  code: string;
  message: string;
}
/** An error that the stream survives; others are thrown. */
export interface MildError {
  type: "error";
  code: string;
  message: string;
  field: string | null;
  fatal: false;
}
export interface Ack {
  type: "ack";
  samples: number;
}
export interface Pong {
  type: "pong";
  id: string;
}
export interface Done {
  type: "done";
  duration: number;
  samples: number;
  words: number;
}
/** The client's own: the connection is lost, and the next attempt comes after `delay` seconds. */
export interface Reconnecting {
  type: "reconnecting";
  attempt: number;
  delay: number;
  reason: string;
}
/** The client's own: connected again; `replayed` seconds of audio are sent once more. */
export interface Resumed {
  type: "resumed";
  replayed: number;
}

export type Event =
  | Ready
  | SpeechStarted
  | SpeechStopped
  | Partial
  | Commit
  | Segment
  | Language
  | Flushed
  | Lag
  | Gap
  | Warning
  | MildError
  | Ack
  | Pong
  | Done
  | Reconnecting
  | Resumed;

/**
 * `code` is one of the protocol's error codes, or `refused`, `stopping`, `unreachable`, `lost`, `closed`,
 * `invalid_url`.
 */
export declare class StreamError extends Error {
  readonly code: string;
  readonly field: string | null;
}

export declare class Stream implements AsyncIterable<Event> {
  readonly url: string;
  readonly state: "connecting" | "open" | "reconnecting" | "closed";
  readonly session: Ready | null;
  /** Seconds of audio that the server has not acknowledged. */
  readonly pending: number;
  send(pcm: ArrayBuffer | ArrayBufferView): Promise<void>;
  flush(): Promise<Flushed>;
  close(): Promise<Done>;
  abort(): void;
  resume(): void;
  events(): AsyncIterableIterator<Event>;
  [Symbol.asyncIterator](): AsyncIterableIterator<Event>;
}

/** Open a stream; rejects with a StreamError. In a page the default address is the page's own. */
export declare function connect(url?: string | null, options?: Options): Promise<Stream>;

/** Complete an address: http becomes ws, and an empty path that of the protocol. */
export declare function streamUrl(url?: string | null): string;
