"""Word error rate streamed against offline, clip by clip, with the same model.

    python benchmarks/streamed_wer.py FOLDER            # simulated: compute time on the clock
    python benchmarks/streamed_wer.py FOLDER --live     # through a real daemon, at real time

FOLDER holds recordings and a manifest.jsonl with a line each: file, text, language, kind, and where
the text has digits, spoken. Prints a table and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer
from whisper_stream.model import load_audio, load_model, transcribe
from whisper_stream.model.normalizers import EnglishTextNormalizer
from whisper_stream.streamer.backend import WhisperBackend
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.events import Commit
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult
from whisper_stream.streamer.session import StreamSession
from whisper_stream.streamer.simulator import simulate
from whisper_stream.streamer.vad import WebRtcDetector

DATA = Path(__file__).parent.parent / "tests" / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    file: str
    words: int  # in the reference text
    streamed: float  # word error rates
    offline: float
    streamed_text: str
    offline_text: str


class Scorer:
    """Word error rate after the published normaliser, with digits said one by one told apart."""

    def __init__(self) -> None:
        self._normalize = EnglishTextNormalizer()

    def words(self, text: str, *, digits: bool) -> str:
        if digits:
            text = re.sub(r"(?<=\d)[.,:\s]+(?=\d)", " ", text)
        text = self._normalize(text)
        if digits:
            text = re.sub(r"(?<=\d)(?=\d)", " ", re.sub(r"\boh?\b", "0", text))
        return text

    def rate(self, references: list[str], hypothesis: str, *, digits: bool) -> float:
        said = self.words(hypothesis, digits=digits)
        return min(jiwer.wer(self.words(text, digits=digits), said) for text in references)


def clips(folder: Path, kinds: list[str], only: list[str]) -> Iterator[dict[str, Any]]:
    for line in (folder / "manifest.jsonl").read_text().splitlines():
        clip = json.loads(line)
        if clip["language"] != "en" or clip["kind"] not in kinds:
            continue
        if not only or any(part in clip["file"] for part in only):
            yield clip


def simulated(backend: WhisperBackend, path: Path) -> str:
    session = StreamSession(StreamConfig(language="en"), WebRtcDetector(), backend.tokenizer)

    def decode(job: DecodeJob) -> DecodeResult:
        return backend.decode([job])[0]

    def cost(job: DecodeJob, result: DecodeResult) -> float:
        return sum(result.timings.values())

    events = simulate(session, [load_audio(path)], decode, cost=cost)
    commits = [timed.event for timed in events if isinstance(timed.event, Commit)]
    return "".join(word.text for commit in commits for word in commit.words).strip()


def live(url: str, path: Path) -> str:
    command = [sys.executable, "-m", "whisper_stream.clients", str(path), "--server", url, "--json"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    return "".join(message["text"] for message in messages if message["type"] == "commit").strip()


@contextlib.contextmanager
def running_daemon(model: str) -> Iterator[str]:
    """A daemon on a free port -> its address."""
    flags = ["--port", "0", "--announce", "--exit-with-stdin", "--model", model]
    command = [sys.executable, "-m", "whisper_stream.server", *flags]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdin and daemon.stdout
        yield json.loads(daemon.stdout.readline())["url"]
        daemon.stdin.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=DATA)
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument("--kind", action="append", help="speech or longform (default: speech)")
    parser.add_argument("--only", action="append", default=[], help="part of a file name")
    parser.add_argument("--live", action="store_true", help="a real daemon, at real-time pace")
    parser.add_argument("--texts", action="store_true", help="print the texts that differ")
    args = parser.parse_args()
    started = time.monotonic()
    rows = list(measure(args))
    report(rows, texts=args.texts)
    summary = {
        "clips": len(rows),
        "wer": statistics.mean(row.streamed for row in rows),
        "wer_offline": statistics.mean(row.offline for row in rows),
        "wer_pooled": pooled(rows, "streamed"),
        "wer_offline_pooled": pooled(rows, "offline"),
        "seconds": time.monotonic() - started,
    }
    print(json.dumps({key: round(value, 4) for key, value in summary.items()}))
    return 0


def measure(args: argparse.Namespace) -> Iterator[Row]:
    scorer = Scorer()
    model = load_model(args.model, device="cpu", compute_type="float32")
    backend = WhisperBackend(model)
    with running_daemon(args.model) if args.live else contextlib.nullcontext() as url:
        for clip in clips(args.folder, args.kind or ["speech"], args.only):
            path = args.folder / clip["file"]
            streamed = live(url, path) if url else simulated(backend, path)
            offline = transcribe(model, load_audio(path), language="en", fp16=False)["text"].strip()
            references = [clip["text"], clip.get("spoken") or clip["text"]]
            digits = "numbers" in clip["file"]
            yield Row(
                file=clip["file"],
                words=len(scorer.words(references[1], digits=digits).split()),
                streamed=scorer.rate(references, streamed, digits=digits),
                offline=scorer.rate(references, offline, digits=digits),
                streamed_text=streamed,
                offline_text=offline,
            )


def pooled(rows: list[Row], field: str) -> float:
    return sum(getattr(row, field) * row.words for row in rows) / sum(row.words for row in rows)


def report(rows: list[Row], *, texts: bool) -> None:
    print(f"{'clip':<36} {'words':>6} {'streamed':>9} {'offline':>8}")
    for row in rows:
        print(f"{row.file:<36} {row.words:>6} {row.streamed:>9.1%} {row.offline:>8.1%}")
        if texts and row.streamed != row.offline:
            print(f"    streamed: {row.streamed_text}\n    offline:  {row.offline_text}")
    streamed = statistics.mean(row.streamed for row in rows)
    offline = statistics.mean(row.offline for row in rows)
    print(f"{'mean of clips':<36} {'':>6} {streamed:>9.1%} {offline:>8.1%}")
    print(
        f"{'all words':<36} {'':>6} {pooled(rows, 'streamed'):>9.1%} {pooled(rows, 'offline'):>8.1%}"
    )


if __name__ == "__main__":
    sys.exit(main())
