"""Where every sample went, over random chunkings, pauses, dropped connections and odd messages.

    python benchmarks/daemon/loss_accounting.py                  # 300 streams
    python benchmarks/daemon/loss_accounting.py --streams 10

For each stream: samples sent = samples the server counted = decoded + silent + declared gaps; and the
commits, replayed, are the segments. Streams run in one process with a scripted decoder that fails now
and then, so that there are gaps. Prints one JSON object last.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rig import SAMPLE_RATE, parser, report
from whisper_stream.server.protocol.errors import CloseCode
from whisper_stream.server.protocol.messages import (
    Commit,
    Done,
    Gap,
    Resumed,
    Segment,
    ServerMessage,
)
from whisper_stream.server.stream.commands import Command, decode_command, encode_command
from whisper_stream.server.stream.outbox import Mailbox, Outbox
from whisper_stream.server.stream.recording import Recording
from whisper_stream.server.stream.runner import say
from whisper_stream.streamer.audio.ingest import open_ingest
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.session.session import StreamSession

from tests.helpers.scripted import FakeDecoder, make_session, pcm16, scripted


class Stream:
    """The server's half of a stream and its client, with a journal between two daemons."""

    def __init__(self, chance: random.Random, failing: float) -> None:
        self.chance = chance
        self.received: list[ServerMessage] = []  # by the client
        self.gaps = 0
        self._failing = failing
        self._config = StreamConfig(language="en", update_interval=chance.choice([0.2, 0.5, 1.5]))
        self._journal: list[tuple[int, bytes]] = []
        self._now = 0.0
        self._decode = FakeDecoder()
        self.mailbox = Mailbox()
        self.mailbox.keep = True
        self.session, self.recording = self._fresh()
        self.recording.record = self._record

    def _fresh(self) -> tuple[StreamSession, Recording]:
        session = make_session(self._config)
        return session, Recording(session, open_ingest("s16le", SAMPLE_RATE, 1))

    def _record(self, command: Command) -> None:
        self._journal.append((self.mailbox.seq, encode_command(command)))

    def _say(self, events: list) -> None:  # type: ignore[type-arg]
        say(events, self.recording, self.mailbox, lambda segment: None)

    def push(self, data: bytes) -> None:
        self._say(self.recording.push(data))
        while self.recording.has_pending:
            self.work()

    def flush(self) -> None:
        self._say(self.recording.flush("f"))

    def work(self) -> None:
        """One job, from asking to its answer."""
        self._now += 0.1
        self._say(self.recording.drain())
        job = self.recording.next_job(self._now)
        if job is None:
            return
        if self.chance.random() < self._failing:
            self._say(self.recording.fail_job("injected", self._now))
        else:
            self._say(self.recording.finish_job(self._decode(job), self._now))

    def finish(self) -> None:
        self._say(self.recording.end_input())
        while not self.recording.finished:
            self.work()
        self.mailbox.close(CloseCode.NORMAL, "done")

    def restart(self) -> None:
        """The daemon is killed; the next one restores the stream from the journal."""
        self.session, self.recording = self._fresh()
        self.mailbox = Mailbox()
        self.mailbox.keep = True
        for seq, body in self._journal:
            self.mailbox.seq = max(self.mailbox.seq, seq)
            self._say(self.recording.replay(decode_command(body)))
        self.recording.record = self._record

    def connect(self, lost: int) -> None:
        """The client connects anew; of what was said since, its connection loses the last ``lost``."""
        seen = max((message.seq for message in self.received), default=0)
        outbox = Outbox()
        first = Resumed(session="s", samples=0, bytes=self.recording.bytes_in, controls=0)
        self.mailbox.attach(outbox, first, seen)
        waiting = [m for m in outbox.waiting() if not isinstance(m, Resumed)]
        self.received += waiting[: max(0, len(waiting) - lost)]
        self.mailbox.detach(outbox)


def run(seed: int) -> dict[str, int]:
    """One stream -> its account in samples; raises AssertionError where that does not add up."""
    chance = random.Random(seed)
    gaps = [chance.choice([0.1, 0.15, 0.4, 1.0, 3.0]) for _ in range(chance.randrange(2, 40))]
    pcm = pcm16(scripted(gaps).audio)
    stream = Stream(chance, failing=chance.choice([0.0, 0.0, 0.05, 0.3]))
    restarts = drops = 0
    while stream.recording.bytes_in < len(pcm):
        at = stream.recording.bytes_in  # the client goes on where the server stands
        stream.push(pcm[at : at + chance.randrange(1, 40_000)])
        match chance.choice(["work", "work", "work", "flush", "connect", "restart", "wait"]):
            case "work":
                stream.work()
            case "flush":
                stream.flush()
            case "connect":
                drops += 1
                stream.connect(lost=chance.randrange(4))
            case "restart" if chance.random() < 0.3:
                restarts += 1
                stream.restart()
            case _:
                pass
    stream.finish()
    stream.connect(lost=0)
    account = stream.session.statistics()
    done = stream.received[-1]
    assert isinstance(done, Done)
    assert done.samples == len(pcm) // 2 == account.received_samples
    assert (
        account.decoded_samples + account.silent_samples + account.lost_samples
        == account.received_samples
    )
    told = [m for m in stream.received if isinstance(m, Gap)]
    assert round(
        sum(m.end - m.start for m in told) * SAMPLE_RATE
    ) - account.lost_samples <= 16 * len(told)
    numbers = [m.seq for m in stream.received]
    assert numbers == sorted(set(numbers)), "a message came twice, or out of order"
    commits = "".join(m.text for m in stream.received if isinstance(m, Commit))
    assert commits == "".join(m.text for m in stream.received if isinstance(m, Segment))
    assert done.words == sum(len(m.words) for m in stream.received if isinstance(m, Commit))
    return {
        "samples": account.received_samples,
        "decoded": account.decoded_samples,
        "silent": account.silent_samples,
        "gaps": account.lost_samples,
        "restarts": restarts,
        "drops": drops,
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--streams", type=int, default=300)
    args = options.parse_args()
    total: dict[str, int] = {}
    for number in range(args.streams):
        for name, value in run(args.seed * 1_000_003 + number).items():
            total[name] = total.get(name, 0) + value
    unaccounted = total["samples"] - total["decoded"] - total["silent"] - total["gaps"]
    figures = {"benchmark": "loss_accounting", "streams": args.streams, **total}
    return report({**figures, "unaccounted": unaccounted, "passed": unaccounted == 0})


if __name__ == "__main__":
    sys.exit(main())
