"""Word error rate of a real daemon at real-time pace, clip by clip.

    python benchmarks/accuracy/streamed_wer.py FOLDER --live
    python benchmarks/accuracy/streamed_wer.py FOLDER          # the same as `whisper-stream bench FOLDER`

FOLDER holds recordings and a manifest.jsonl; see docs/benchmarks.md. Prints a line a clip and, last,
one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from whisper_stream.clients.tools import bench as bench_command
from whisper_stream.clients.tools.clips import read_clips
from whisper_stream.clients.tools.scoring import Scorer

DATA = Path(__file__).parents[2] / "tests" / "data"


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


def live_text(url: str, path: Path) -> str:
    command = [sys.executable, "-m", "whisper_stream.clients", str(path), "--server", url, "--json"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    return "".join(message["text"] for message in messages if message["type"] == "commit").strip()


def measure_live(args: argparse.Namespace) -> int:
    scorer = Scorer("en")
    counts = []
    with running_daemon(args.model) as url:
        for clip in read_clips([args.folder], kinds=args.kind or ["speech"], only=args.only):
            if clip.language != "en" or not clip.references:
                continue
            text = live_text(url, Path(clip.path))
            count = scorer.count(clip.references, text)
            print(f"{clip.name:<36} {count.length:>6} words {count.rate or 0:>7.1%}", flush=True)
            if args.texts and count.errors:
                print(f"    {text}")
            counts.append(count)
    if not counts:
        raise SystemExit(f"no English recording with a text in {args.folder} fits these options")
    rates = [count.rate for count in counts if count.rate is not None]
    summary = {
        "clips": len(counts),
        "wer": round(statistics.mean(rates), 4),
        "wer_pooled": round(
            sum(count.errors for count in counts) / sum(count.length for count in counts), 4
        ),
    }
    print(json.dumps(summary))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=DATA)
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument(
        "--kind", action="append", choices=["speech", "longform"], help="default: speech"
    )
    parser.add_argument("--only", action="append", default=[], help="part of a file name")
    parser.add_argument("--live", action="store_true", help="a real daemon, at real-time pace")
    parser.add_argument("--texts", action="store_true", help="print the texts with errors in them")
    args = parser.parse_args()
    if args.live:
        return measure_live(args)
    flags = [str(args.folder), "--model", args.model, "--json"]
    for name in ("kind", "only"):
        flags += [part for value in getattr(args, name) or () for part in (f"--{name}", value)]
    return bench_command.main([*flags, "--texts"] if args.texts else flags)


if __name__ == "__main__":
    sys.exit(main())
