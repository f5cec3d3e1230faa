"""The same audio gives the same events, however it is cut, and however late it or its decodes are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from whisper_stream.model.whisper.network import Whisper
from whisper_stream.streamer.audio.ingest import PcmIngest
from whisper_stream.streamer.audio.vad import WebRtcDetector
from whisper_stream.streamer.commands import Configure, EndOfStream, Flush
from whisper_stream.streamer.config import SAMPLE_RATE, StreamConfig
from whisper_stream.streamer.engine.cpu_backend import BackendConfig, CpuBackend
from whisper_stream.streamer.events import Commit, Event, Lag
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult
from whisper_stream.streamer.session.session import StreamSession
from whisper_stream.streamer.simulator import simulate

from ...helpers.scripted import (
    ChaoticDecoder,
    FakeDecoder,
    Ledger,
    Script,
    committed_words,
    drain,
    make_session,
    pcm16,
    scripted,
)
from ...helpers.stream_strategies import CONFIGS, Samples, relaxed, scripts, texts


def cuts(length: int, sizes: list[int]) -> Iterator[tuple[int, int]]:
    at = turn = 0
    while at < length:
        end = min(length, at + sizes[turn % len(sizes)])
        yield at, end
        at, turn = end, turn + 1


# mostly one large chunk after some tiny ones, so that a run stays short
SIZES = st.lists(
    st.one_of(st.integers(1, 9), st.integers(10, 5000), st.integers(5000, 320_000)),
    min_size=1,
    max_size=8,
).map(lambda sizes: [*sizes, 40_001])


@relaxed
@given(script=scripts(), sizes=SIZES, config=CONFIGS, chaos=st.booleans())
@example(  # a full window was once cut after the end of its utterance
    script=scripted([0.06, 0.06, 0.06, 0.1, 1.1], tail=3.0),
    sizes=[1, 40_001],
    config=StreamConfig(
        update_interval=0.2,
        endpoint_silence=1.5,
        preroll=0.0,
        soft_window=1.5,
        max_window=4.0,
        commit_margin=0.0,
        context_silence=0.0,
        context_seconds=0.0,
        buffer_seconds=8.5,
        condition_on_previous=False,
    ),
    chaos=True,
)
def test_bytes_of_any_chunking_give_the_same_events(
    script: Script, sizes: list[int], config: StreamConfig, chaos: bool
) -> None:
    data = pcm16(script.audio)

    def run(chunks: list[bytes]) -> list[Event]:
        reader = PcmIngest("s16le", SAMPLE_RATE, 1)
        session = make_session(config)
        decode = ChaoticDecoder() if chaos else FakeDecoder()
        timed = simulate(session, (reader.push(chunk) for chunk in chunks), decode)
        return [item.event for item in timed]

    assert run([data[at:end] for at, end in cuts(len(data), sizes)]) == run([data])


@relaxed
@given(
    script=scripts(),
    sizes=SIZES,
    every=st.sampled_from([4_000, 16_000, 50_001, 130_000]),
    config=CONFIGS,
)
def test_a_session_polled_at_the_same_samples_does_the_same(
    script: Script, sizes: list[int], every: int, config: StreamConfig
) -> None:
    """No simulator in between: chunks are fed as they are, jobs asked for at fixed positions."""
    config = replace(config, buffer_seconds=40.0)

    def run(chunk_sizes: list[int]) -> tuple[list[Event], list[tuple[int, tuple[int, ...]]]]:
        session, decoder = make_session(config), FakeDecoder()
        ledger = Ledger(session)
        for at in range(0, len(script.audio), every):
            poll = script.audio[at : at + every]
            for start, end in cuts(len(poll), chunk_sizes):
                ledger.feed(poll[start:end])
            drain(ledger, decoder)
        ledger.observe(session.request(EndOfStream()))
        drain(ledger, decoder)
        assert session.finished
        return ledger.events, [(len(job.audio), job.prefix) for job in decoder.jobs]

    assert run(sizes) == run([10**9])


def live(
    config: StreamConfig,
    audio: Samples,
    decode: Callable[[DecodeJob], DecodeResult],
    *,
    sizes: Sequence[int] = (1600,),
    late: Sequence[float] = (0.0,),
    costs: Sequence[float] = (0.0,),
    requests: Sequence[int] = (),
) -> list[Event]:
    """What is said of live speech whose pieces come so many seconds ``late``, in turn, where the
    decodes take ``costs`` in turn, with a flush or new options at every sample of ``requests``."""
    session, now, free_at, turn = make_session(config), 0.0, 0.0, 0
    events: list[Event] = []
    job: DecodeJob | None = None

    def work(until: float) -> None:
        """Decodes what there is, until the time given."""
        nonlocal job, now, free_at, turn
        while True:
            if job is None and (job := session.next_job(now)) is not None:
                free_at = now + costs[turn % len(costs)]
                turn += 1
            if job is None or free_at > until:
                now = until
                return
            now = free_at
            done, job = decode(job), None
            events.extend(session.finish_job(done, now))

    bounds = {end for _, end in cuts(len(audio), list(sizes))} | set(requests)
    at = 0
    for number, end in enumerate(sorted(bounds)):
        work(max(now, end / SAMPLE_RATE + late[number % len(late)]))
        while session.room < end - at:
            work(free_at)
        events += session.feed(audio[at:end])
        at = end
        if end in requests and end % 2:
            events += session.request(Flush(id=str(end)))
        elif end in requests:
            events += session.request(Configure(endpoint_silence=0.3 + end % 5 / 10))
    events += session.request(EndOfStream())
    while not session.finished:
        work(max(now, free_at))
    return [event for event in events if not isinstance(event, Lag)]


@relaxed
@given(
    script=scripts(),
    sizes=SIZES.map(lambda sizes: [min(size, 20_000) + 300 for size in sizes]),
    late=st.lists(st.sampled_from([0.0, 0.0, 0.3, 2.0, 10.0]), min_size=1, max_size=6),
    costs=st.lists(st.floats(0.0, 0.5), min_size=1, max_size=6),
    points=st.lists(st.integers(1, 400_000), max_size=4),
    chaos=st.booleans(),
    interval=st.sampled_from([0.2, 0.4, 1.1]),
)
def test_a_live_stream_says_the_same_however_late_its_audio_and_its_decodes_are(
    script: Script,
    sizes: list[int],
    late: list[float],
    costs: list[float],
    points: list[int],
    chaos: bool,
    interval: float,
) -> None:
    config = StreamConfig(language="en", update_interval=interval, soft_window=4.0, max_window=9.0)
    requests = [point for point in points if point < len(script.audio)]

    def decoder() -> FakeDecoder | ChaoticDecoder:
        return ChaoticDecoder() if chaos else FakeDecoder()

    undisturbed = live(config, script.audio, decoder(), requests=requests)
    costs = [cost * interval for cost in costs]
    disturbed = live(
        config,
        script.audio,
        decoder(),
        sizes=sizes,
        late=late,
        costs=costs,
        requests=requests,
    )
    assert disturbed == undisturbed


def test_real_speech_of_any_chunking(tiny_en: Whisper, jfk: Samples) -> None:
    torch.manual_seed(0)
    backend = CpuBackend(tiny_en, BackendConfig(endpoint_context="trimmed"))
    data = (jfk * 32768).clip(-32768, 32767).astype("<i2").tobytes()
    config = StreamConfig(update_interval=3.0)
    known: dict[tuple[bytes, tuple[int, ...], tuple[int, ...], bool], DecodeResult] = {}

    def decode(job: DecodeJob) -> DecodeResult:
        key = (job.audio.tobytes(), job.prefix, job.draft, job.endpoint)
        if key not in known:
            (known[key],) = backend.decode([job])
        return known[key]

    def run(chunks: list[bytes]) -> list[Event]:
        reader = PcmIngest("s16le", SAMPLE_RATE, 1)
        session = StreamSession(config, WebRtcDetector(), backend.tokenizer)
        return [t.event for t in simulate(session, map(reader.push, chunks), decode)]

    whole = run([data])
    text = "".join(texts(committed_words(whole)))
    assert text.startswith(" And so my fellow Americans")
    assert text.endswith("what you can do for your country.")
    decodes = len(known)
    for sizes in ([1, 160_001], [641], [3, 5, 7, 32_000], [320_000]):
        assert run([data[at:end] for at, end in cuts(len(data), sizes)]) == whole
    assert len(known) == decodes  # the very same jobs
    starts = [w.start_sample for w in committed_words(whole)]
    assert starts == sorted(starts)
    assert any(isinstance(event, Commit) for event in whole[:-4])
