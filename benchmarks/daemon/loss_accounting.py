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
from whisper_stream.server.stream.outbox import Outbox, SendQueue
from whisper_stream.server.stream.stream import Stream
from whisper_stream.server.stream.stream_journal import decode_command, encode_command
from whisper_stream.streamer.audio.ingest import open_ingest
from whisper_stream.streamer.commands import (
    Audio,
    Command,
    EndOfStream,
    Flush,
    JobDone,
    JobFailed,
    JobStarted,
    Tick,
)
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.session.session import StreamSession

from tests.helpers.scripted import FakeDecoder, make_session, pcm16, scripted


class Conversation:
    """The server's half of a stream and its client, with a journal between two daemons."""

    def __init__(self, chance: random.Random, failing: float) -> None:
        self.chance = chance
        self.received: list[ServerMessage] = []  # by the client
        self._failing = failing
        self._config = StreamConfig(language="en", update_interval=chance.choice([0.2, 0.5, 1.5]))
        self._journal: list[tuple[int, float, bytes]] = []
        self._now = 0.0
        self._decode = FakeDecoder()
        self.outbox = Outbox(keep=True)
        self.session, self.stream = self._fresh()

    def _fresh(self) -> tuple[StreamSession, Stream]:
        session = make_session(self._config)
        return session, Stream(session, open_ingest("s16le", SAMPLE_RATE, 1), self._config)

    def apply(self, command: Command) -> None:
        messages = self.stream.apply(command, self._now)
        self._record(command)
        for message in messages:
            self.outbox.publish(message)

    def push(self, data: bytes) -> None:
        self.apply(Audio(data=data))
        while self.stream.pending:
            self.work()

    def work(self) -> None:
        """One job, from asking to its answer."""
        self._now += 0.1
        if self.stream.pending and self.stream.room > 0:
            self.apply(Tick())
        out = self.stream.job
        job = self.stream.next_job(self._now)
        if job is None:
            return
        if job is not out:
            self._record(JobStarted(samples=len(job.audio)))
        if self.chance.random() < self._failing:
            self.apply(JobFailed(reason="injected"))
        else:
            self.apply(JobDone(result=self._decode(job)))

    def finish(self) -> None:
        self.apply(EndOfStream())
        while not self.stream.finished:
            self.work()
        self.outbox.close(CloseCode.NORMAL, "done")

    def restart(self) -> None:
        """The daemon is killed; the next one brings the stream back from the journal."""
        self.session, self.stream = self._fresh()
        self.outbox = Outbox(keep=True)
        for seq, now, body in self._journal:
            self.outbox.seq = max(self.outbox.seq, seq)
            for message in self.stream.apply(decode_command(body), now):
                self.outbox.publish(message)

    def connect(self, lost: int) -> None:
        """The client connects anew; of what was said since, its connection loses the last ``lost``."""
        seen = max((message.seq for message in self.received), default=0)
        queue = SendQueue()
        first = Resumed(session="s", samples=0, bytes=self.stream.bytes_in, controls=0)
        self.outbox.attach(queue, first, seen)
        waiting = [m for m in queue.waiting() if not isinstance(m, Resumed)]
        self.received += waiting[: max(0, len(waiting) - lost)]
        self.outbox.detach(queue)

    def _record(self, command: Command) -> None:
        self._journal.append((self.outbox.seq, self._now, encode_command(command)))


def run(seed: int) -> dict[str, int]:
    """One stream -> its account in samples; raises AssertionError where that does not add up."""
    chance = random.Random(seed)
    gaps = [chance.choice([0.1, 0.15, 0.4, 1.0, 3.0]) for _ in range(chance.randrange(2, 40))]
    pcm = pcm16(scripted(gaps).audio)
    talk = Conversation(chance, failing=chance.choice([0.0, 0.0, 0.05, 0.3]))
    restarts = drops = 0
    while talk.stream.bytes_in < len(pcm):
        at = talk.stream.bytes_in  # the client goes on where the server stands
        talk.push(pcm[at : at + chance.randrange(1, 40_000)])
        match chance.choice(["work", "work", "work", "flush", "connect", "restart", "wait"]):
            case "work":
                talk.work()
            case "flush":
                talk.apply(Flush(id="f"))
            case "connect":
                drops += 1
                talk.connect(lost=chance.randrange(4))
            case "restart" if chance.random() < 0.3:
                restarts += 1
                talk.restart()
            case _:
                pass
    talk.finish()
    talk.connect(lost=0)
    account = talk.session.statistics()
    done = talk.received[-1]
    assert isinstance(done, Done)
    assert done.samples == len(pcm) // 2 == account.received_samples
    assert (
        account.decoded_samples + account.silent_samples + account.lost_samples
        == account.received_samples
    )
    told = [m for m in talk.received if isinstance(m, Gap)]
    assert round(
        sum(m.end - m.start for m in told) * SAMPLE_RATE
    ) - account.lost_samples <= 16 * len(told)
    numbers = [m.seq for m in talk.received]
    assert numbers == sorted(set(numbers)), "a message came twice, or out of order"
    commits = "".join(m.text for m in talk.received if isinstance(m, Commit))
    assert commits == "".join(m.text for m in talk.received if isinstance(m, Segment))
    assert done.words == sum(len(m.words) for m in talk.received if isinstance(m, Commit))
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
