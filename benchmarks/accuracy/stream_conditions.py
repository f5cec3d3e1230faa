"""Streams under conditions that break streaming: many pauses, none at all, silence; and how right times are.

    python benchmarks/accuracy/stream_conditions.py FOLDER [--model tiny.en] [--only drift times breathless silence]

FOLDER has recordings and a ``manifest.jsonl`` with the times of words. Streams run on a virtual clock
on which decoding takes the time it takes. Prints what it finds, and last one JSON object.

drift: short recordings one after the other with 50 pauses of 0.3 to 8 s between: the times of their
words against those of each recording as a stream of its own. times: words against the labelled times, streamed and
by whole-file transcription with word timestamps in float32. breathless: ten minutes of speech with all
pauses cut out: delay and memory by the minute. silence: five minutes of zeros.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
from numpy.typing import NDArray
from whisper_stream.clients.tools.bench_metrics import spelling
from whisper_stream.clients.tools.clips import Clip, SpokenWord, read_clips
from whisper_stream.model import load_audio, load_model, transcribe
from whisper_stream.model.cpu.runtime import use_passive_omp_wait
from whisper_stream.streamer.audio.vad import FRAME_SAMPLES, WebRtcDetector, make_detector
from whisper_stream.streamer.config import SAMPLE_RATE, StreamConfig
from whisper_stream.streamer.engine.cpu_backend import CpuBackend
from whisper_stream.streamer.events import Commit
from whisper_stream.streamer.session.session import StreamSession
from whisper_stream.streamer.simulator import TimedEvent, simulate

Audio = NDArray[np.float32]
CONDITIONS = ("drift", "times", "breathless", "silence")
_PAUSES = 50
_BREATHLESS_SECONDS = 600
_SILENT_SECONDS = 300


class Streams:
    def __init__(self, model: str) -> None:
        self.model = load_model(model, device="cpu")
        self._backend = CpuBackend(self.model)

    def run(self, audio: Audio) -> Iterator[TimedEvent]:
        config = StreamConfig(language="en")
        session = StreamSession(config, make_detector(config.detector), self._backend.tokenizer)
        begun = time.perf_counter()

        def decode(job: Any) -> Any:
            nonlocal begun
            begun = time.perf_counter()
            return self._backend.decode_one(job)

        return simulate(
            session, [audio], decode, cost=lambda job, result: time.perf_counter() - begun
        )

    def words(self, audio: Audio) -> list[SpokenWord]:
        return [
            SpokenWord(
                text=word.text,
                start=word.start_sample / SAMPLE_RATE,
                end=word.end_sample / SAMPLE_RATE,
            )
            for timed in self.run(audio)
            if isinstance(timed.event, Commit)
            for word in timed.event.words
        ]


def pairs(
    one: Sequence[SpokenWord], other: Sequence[SpokenWord]
) -> list[tuple[SpokenWord, SpokenWord]]:
    """The same words of both, by the alignment with the fewest edits."""
    one, other = ([word for word in words if spelling(word.text)] for words in (one, other))
    if not one or not other:
        return []
    texts = (" ".join(spelling(word.text) for word in words) for words in (one, other))
    found: list[tuple[SpokenWord, SpokenWord]] = []
    for chunk in jiwer.process_words(*texts).alignments[0]:
        if chunk.type == "equal":
            found += zip(
                one[chunk.ref_start_idx : chunk.ref_end_idx],
                other[chunk.hyp_start_idx : chunk.hyp_end_idx],
                strict=True,
            )
    return found


def drift(streams: Streams, clips: Sequence[Clip]) -> dict[str, Any]:
    recordings = [load_audio(clip.path) for clip in clips]
    alone = [streams.words(audio) for audio in recordings]
    random = np.random.default_rng(0)
    pieces: list[Audio] = []
    starts: list[float] = []
    at = 0
    for number in range(_PAUSES):
        audio = recordings[number % len(recordings)]
        pause = np.zeros(round(random.uniform(0.3, 8.0) * SAMPLE_RATE), np.float32)
        starts.append(at / SAMPLE_RATE)
        pieces += [audio, pause]
        at += len(audio) + len(pause)
    words = streams.words(np.concatenate(pieces))
    offsets: list[list[float]] = []
    for number, (start, following) in enumerate(
        zip(starts, [*starts[1:], at / SAMPLE_RATE], strict=True)
    ):
        own = [
            SpokenWord(text=word.text, start=word.start - start, end=word.end - start)
            for word in words
            if start <= (word.start + word.end) / 2 < following
        ]
        same = pairs(alone[number % len(recordings)], own)
        offsets.append([b.end - a.end for a, b in same])
    half = len(offsets) // 2
    early, late = sum(offsets[:half], []), sum(offsets[half:], [])
    every = [abs(value) for value in early + late]
    return {
        "pauses": _PAUSES,
        "minutes": at / SAMPLE_RATE / 60,
        "words": len(every),
        "mean_offset_ms": 1000 * statistics.mean(early + late),
        "median_offset_ms": 1000 * statistics.median(early + late),
        "drift_ms": 1000 * (statistics.median(late) - statistics.median(early)),
        "within_20_ms": sum(value <= 0.0201 for value in every) / len(every),
        "p95_ms": 1000 * float(np.percentile(every, 95)),
    }


def times(streams: Streams, clips: Sequence[Clip], model: str) -> dict[str, Any]:
    reference = load_model(model, device="cpu", compute_type="float32")
    errors: dict[str, list[float]] = {"streamed": [], "whole file": []}
    for clip in clips:
        if not clip.words:
            continue
        audio = load_audio(clip.path)
        found = transcribe(reference, audio, language="en", word_timestamps=True, temperature=0.0)
        whole = [
            SpokenWord(text=word["word"], start=word["start"], end=word["end"])
            for segment in found["segments"]
            for word in segment["words"]
        ]
        for name, words in (("streamed", streams.words(audio)), ("whole file", whole)):
            for label, word in pairs(clip.words, words):
                errors[name] += [abs(label.start - word.start), abs(label.end - word.end)]
    return {
        name: {
            "edges": len(values),
            "median_ms": 1000 * statistics.median(values),
            "p95_ms": 1000 * float(np.percentile(values, 95)),
        }
        for name, values in errors.items()
    }


def breathless(streams: Streams, clip: Clip) -> dict[str, Any]:
    audio = without_pauses(load_audio(clip.path))
    audio = np.tile(audio, -(-_BREATHLESS_SECONDS * SAMPLE_RATE // len(audio)))
    audio = audio[: _BREATHLESS_SECONDS * SAMPLE_RATE]
    delays: list[list[float]] = [[] for _ in range(_BREATHLESS_SECONDS // 60)]
    memory: list[float] = [0.0] * len(delays)
    cpu = time.process_time()
    for timed in streams.run(audio):
        if isinstance(timed.event, Commit):
            for word in timed.event.words:
                end = word.end_sample / SAMPLE_RATE
                delays[min(int(end // 60), len(delays) - 1)].append(timed.time - end)
        memory[min(int(timed.time // 60), len(memory) - 1)] = resident_mb()
    medians = [statistics.median(minute) for minute in delays]
    minutes = np.arange(len(delays))
    return {
        "delay_by_minute": [round(value, 3) for value in medians],
        "delay_p95_by_minute": [round(float(np.percentile(minute, 95)), 3) for minute in delays],
        "memory_mb_by_minute": [round(value, 1) for value in memory],
        "delay_slope_ms_per_minute": 1000 * float(np.polyfit(minutes, medians, 1)[0]),
        # the first minutes warm caches up
        "memory_slope_mb_per_minute": float(np.polyfit(minutes[2:], memory[2:], 1)[0]),
        "cpu_per_audio_second": (time.process_time() - cpu) / _BREATHLESS_SECONDS,
    }


def without_pauses(audio: Audio) -> Audio:
    """The frames in which somebody speaks, one after the other."""
    detector = WebRtcDetector()
    whole = len(audio) // FRAME_SAMPLES * FRAME_SAMPLES
    frames = audio[:whole].reshape(-1, FRAME_SAMPLES)
    return np.concatenate([frame for frame in frames if detector.is_speech(frame)])


def silence(streams: Streams) -> dict[str, Any]:
    cpu = time.process_time()
    events = list(streams.run(np.zeros(_SILENT_SECONDS * SAMPLE_RATE, np.float32)))
    words = [
        word for timed in events if isinstance(timed.event, Commit) for word in timed.event.words
    ]
    return {
        "seconds": _SILENT_SECONDS,
        "words": len(words),
        "cpu_share": (time.process_time() - cpu) / _SILENT_SECONDS,
    }


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument("--only", nargs="+", default=CONDITIONS, choices=CONDITIONS)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(given.threads)
    streams = Streams(given.model)
    speech = [clip for clip in read_clips([given.folder]) if clip.language == "en"]
    found: dict[str, Any] = {}
    if "drift" in given.only:
        short = [clip for clip in speech if len(load_audio(clip.path)) < 8 * SAMPLE_RATE]
        found["drift"] = drift(streams, short)
    if "times" in given.only:
        found["times"] = times(streams, speech, given.model)
    if "breathless" in given.only:
        long = read_clips([given.folder], kinds=["longform"])[0]
        found["breathless"] = {"recording": long.path.name, **breathless(streams, long)}
    if "silence" in given.only:
        found["silence"] = silence(streams)
    for name, figures in found.items():
        print(name, figures)
    print(json.dumps(found))


if __name__ == "__main__":
    use_passive_omp_wait()
    main()
