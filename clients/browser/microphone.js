/** The microphone, as PCM at the device's own rate. The server resamples. */

const MOST = 48000; // samples per second that the protocol takes

/** What went wrong with the microphone, by a name that words.js knows. */
export class MicrophoneError extends Error {
  constructor(code) {
    super(code);
    this.code = code;
  }
}

/** The audio inputs, named once the page may use the microphone. */
export async function devices() {
  if (!navigator.mediaDevices) return [];
  const all = await navigator.mediaDevices.enumerateDevices();
  return all
    .filter((device) => device.kind === "audioinput" && device.deviceId)
    .map(({ deviceId, label }, index) => ({ id: deviceId, name: label || `Microphone ${index + 1}` }));
}

/**
 * Start to capture.
 * @param {string} device an id from `devices`, or "" for the system's choice
 * @param {(pcm: Int16Array, peak: number) => void} heard gets a tenth of a second of mono audio
 * @param {() => void} ended the device was unplugged, or the browser took it away
 * @returns {Promise<{rate: number, label: string, stop: () => void}>}
 */
export async function capture(device, heard, ended) {
  if (!globalThis.isSecureContext || !navigator.mediaDevices) throw new MicrophoneError("insecure");
  const media = await open(device);
  const [track] = media.getAudioTracks();
  const context = audioContext(track.getSettings().sampleRate);
  const stop = () => {
    track.onended = null;
    track.stop();
    context.close().catch(() => {});
  };
  try {
    await context.audioWorklet.addModule(new URL("worklet.js", import.meta.url)).catch(() => {
      throw new MicrophoneError("unreachable"); // it comes from the server
    });
    if (context.state === "suspended") await context.resume();
    const node = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
    node.port.onmessage = ({ data }) => heard(data.pcm, data.peak);
    context.createMediaStreamSource(media).connect(node);
  } catch (error) {
    stop();
    throw error;
  }
  track.onended = () => {
    stop();
    ended();
  };
  return { rate: context.sampleRate, label: track.label, stop };
}

async function open(device) {
  // Captions need what was said, not what sounds good on a call; but rooms need their gain.
  const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: true };
  if (device) audio.deviceId = { exact: device };
  try {
    return await navigator.mediaDevices.getUserMedia({ audio });
  } catch (error) {
    const codes = {
      NotAllowedError: "denied",
      SecurityError: "denied",
      NotFoundError: "no_device",
      OverconstrainedError: "gone",
      NotReadableError: "busy",
      AbortError: "busy",
    };
    throw new MicrophoneError(codes[error.name] ?? "busy");
  }
}

/** At the device's rate, so that nothing is resampled twice; some browsers insist on that too. */
function audioContext(rate) {
  if (!rate) {
    const usual = new AudioContext();
    if (usual.sampleRate <= MOST) return usual;
    usual.close();
    rate = MOST;
  }
  try {
    return new AudioContext({ sampleRate: Math.min(rate, MOST) });
  } catch {
    return new AudioContext();
  }
}
