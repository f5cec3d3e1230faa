"""Keys, limits, origins and admission, without a network."""

from __future__ import annotations

import datetime

import pytest
from whisper_stream.server.errors import ConfigError
from whisper_stream.server.http.admission import Admission
from whisper_stream.server.http.auth import (
    Account,
    Authenticator,
    is_loopback,
    key_of,
    parse_keys,
    read_keys,
)
from whisper_stream.server.metrics import LoadSample
from whisper_stream.streamer.engine.engine import EngineStatistics

KEY = "0123456789abcdef"
DAY = datetime.date(2026, 3, 1)


def authenticator(*lines: str, today: datetime.date = DAY) -> Authenticator:
    return Authenticator(parse_keys(lines, "keys"), [], local=True, today=lambda: today)


def test_only_a_known_key_opens() -> None:
    keyed = authenticator("# who may come", "", f"anna:{KEY}", "otto:another-long-secret streams=2")
    assert keyed.needs_key
    anna, otto = keyed.account(KEY), keyed.account("another-long-secret")
    assert anna is not None and anna.name == "anna" and anna.most_streams is None
    assert otto is not None and otto.most_streams == 2
    for wrong in (None, "", KEY[:-1], KEY + "0", "anna", f"anna:{KEY}", "ключ", "\ud800"):
        assert keyed.account(wrong) is None
    assert not authenticator().needs_key


def test_a_key_expires_after_its_last_day() -> None:
    line = f"anna:{KEY} expires=2026-03-01"
    assert authenticator(line).account(KEY) is not None
    assert authenticator(line, today=DAY + datetime.timedelta(1)).account(KEY) is None


def test_limits_are_those_of_a_day() -> None:
    account = authenticator(f"anna:{KEY} minutes=1 bytes=1000").account(KEY)
    assert account is not None
    assert account.use(DAY, 400, 30.0) is None
    assert account.use(DAY, 400, 30.0) is None
    assert account.use(DAY, 100, 1.0) == "1 minutes of audio a day"
    tomorrow = DAY + datetime.timedelta(1)
    assert account.use(tomorrow, 1000, 1.0) is None
    assert account.use(tomorrow, 1, 0.0) == "1000 bytes of audio a day"


def test_keys_read_again_keep_what_was_used() -> None:
    keyed = authenticator(f"anna:{KEY} bytes=10", "otto:another-long-secret")
    before = keyed.account(KEY)
    assert before is not None
    before.use(DAY, 9, 0.0)
    keyed.reload(parse_keys([f"anna:{KEY} bytes=20"], "keys"))
    after = keyed.account(KEY)
    assert after is not None and after.use(DAY, 12, 0.0) == "20 bytes of audio a day"
    assert keyed.account("another-long-secret") is None


@pytest.mark.parametrize(
    "line", ["anna", f"anna {KEY}", "anna:short", f":{KEY}", f"a:{KEY} days=3", f"a:{KEY} bytes=x"]
)
def test_a_wrong_line_is_named_and_shows_no_key(line: str) -> None:
    with pytest.raises(ConfigError, match="keys, line 2") as caught:
        parse_keys(["# comment", line], "keys")
    assert KEY not in str(caught.value)


def test_no_keys_by_mistake_is_no_open_door(tmp_path: object) -> None:
    assert read_keys(None, None) == [] and len(read_keys(None, f"a:{KEY},b:{KEY}2")) == 2
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(f"{tmp_path}/none", None)
    with open(f"{tmp_path}/empty", "w") as file:
        file.write("# nothing yet\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys(f"{tmp_path}/empty", None)


def test_where_a_key_may_be_shown() -> None:
    assert key_of({"authorization": f"Bearer {KEY}"}, {}, []) == KEY
    assert key_of({"x-api-key": KEY}, {}, []) == KEY
    assert key_of({}, {"key": KEY}, []) == KEY
    assert key_of({}, {}, ["whisper-stream.v1.json", f"whisper-stream.key.{KEY}"]) == KEY
    assert key_of({"authorization": "Basic abc"}, {}, ["whisper-stream.v1.json"]) is None


@pytest.mark.parametrize(
    ("local", "allowed", "origin", "host", "welcome"),
    [
        (True, "", None, "localhost:9090", True),
        (True, "", "http://localhost:9090", "localhost:9090", True),
        (True, "", "http://127.0.0.1:9090", "127.0.0.1:9090", True),
        (True, "", "http://evil.example", "localhost:9090", False),
        (True, "", "http://evil.example:9090", "evil.example:9090", False),  # DNS rebinding
        (True, "", "null", "localhost:9090", False),
        (True, "", "http://localhost:8080", "localhost:9090", False),
        (False, "", "https://here.example", "here.example", True),
        (False, "", "https://evil.example", "here.example", False),
        (True, "https://app.example", "https://app.example", "localhost:9090", True),
        (True, "*", "https://any.example", "localhost:9090", True),
        (True, "", "http://[", "127.0.0.1:9090", False),  # found by fuzz.py --guided
        (False, "", "https://1]:9.0.1", "1]:9.0.1", False),
    ],
)
def test_which_pages_may_connect(
    local: bool, allowed: str, origin: str | None, host: str, welcome: bool
) -> None:
    assert Authenticator([], allowed.split(), local=local).welcomes(origin, host) is welcome


def test_what_is_this_machine_alone() -> None:
    assert all(
        is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "[::1]")
    )
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "a.localhost.evil"))


def busy(seconds: float) -> EngineStatistics:
    return EngineStatistics(
        queued=0, running=0, done=0, failed=0, audio_seconds=0.0, busy_seconds=seconds
    )


def test_streams_are_admitted_by_what_they_cost() -> None:
    """Each stream takes an eighth of the engine: seven fit below nine tenths."""
    admission = Admission(0.9)
    streams, spent = 0, 0.0
    for second in range(400):
        admission.observe(float(second), busy(spent), streams)
        if second % 20 == 0 and admission.admits(float(second), streams):
            admission.admitted(float(second))
            streams += 1
        spent += streams / 8
    assert streams == 7
    assert admission.load == pytest.approx(7 / 8, abs=0.02)


def test_a_rush_is_held_back_before_it_shows_in_the_load() -> None:
    admission = Admission(0.9)
    spent = 0.0
    for second in range(60):
        admission.observe(float(second), busy(spent), 1)
        spent += 0.2
    let_in = 1
    while admission.admits(60.0, let_in):
        admission.admitted(60.0)
        let_in += 1
    assert let_in == 4  # a fifth each, four fifths in all


def turnaround(streams: int) -> float:
    """Seconds that an answer takes, as measured of tiny.en on two cores: updates grow rarer, and longer."""
    at_once, waiting = 0.04, 0.0
    if streams < 16:
        waiting = streams * 0.017 / (1.5 * (1 - streams * 0.062))
    return max(at_once, waiting) if streams < 16 else 60.0


def fill(admission: Admission, every: int, seconds: int) -> int:
    """Streams that are let in when one asks every so many seconds."""
    streams, spent = 0, 0.0
    for second in range(seconds):
        sample = LoadSample(turnaround=turnaround(streams) if streams else None)
        admission.observe(float(second), busy(spent), streams, sample)
        if second % every == 0 and admission.admits(float(second), streams):
            admission.admitted(float(second))
            streams += 1
        spent += min(0.97, streams * 0.11)
    return streams


@pytest.mark.parametrize("every", [1, 3, 7])
def test_a_busy_engine_takes_more_until_words_would_be_late(every: int) -> None:
    """The load says nine are all; but updates become rarer, and thirteen keep their delay."""
    admission = Admission(0.9)
    admission.most_delay = 4.0
    streams = fill(admission, every, 900)
    delay = 1.6 + 2.5 * turnaround(streams)
    assert streams >= 11 and delay <= 4.0
    by_load = Admission(0.9)
    assert fill(by_load, every, 900) <= 9


def test_a_rush_beyond_the_load_is_let_in_one_at_a_time() -> None:
    admission = Admission(0.5)
    admission.most_delay = 4.0
    for second in range(60):
        admission.observe(float(second), busy(second * 0.6), 6, LoadSample(turnaround=0.2))
    assert admission.admits(60.0, 6)
    admission.admitted(60.0)
    assert not admission.admits(60.5, 7)
    assert admission.admits(65.5, 7)


def test_what_is_played_faster_than_speech_takes_nobody_s_place() -> None:
    """One client plays an hour at nine times its pace, and the engine has no idle moment."""
    admission = Admission(0.9)
    admission.most_delay = 4.0
    for second in range(60):
        admission.observe(float(second), busy(float(second)), 1, LoadSample(live=1 / 9))
    assert admission.load == pytest.approx(1 / 9, rel=0.01)
    assert admission.admits(60.0, 1)


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_an_engine_with_time_to_spare_takes_streams_however_few_there_are(streams: int) -> None:
    """A second stream does not make answers three times as slow: those of endpoints take half a second."""
    admission = Admission(0.9)
    admission.most_delay = 4.0
    for second in range(60):
        admission.observe(float(second), busy(second * 0.1), streams, LoadSample(turnaround=0.5))
    assert admission.admits(60.0, streams)
    admission.admitted(60.0)
    assert admission.admits(60.1, streams + 1)


def test_a_refusal_names_its_reason() -> None:
    slow, full = Admission(0.9), Admission(0.5)
    slow.most_delay = full.most_delay = 4.0
    for second in range(120):
        slow.observe(float(second), busy(second * 0.3), 1, LoadSample(turnaround=1.5))
        full.observe(float(second), busy(second * 0.97), 7, LoadSample(turnaround=0.8))
    assert not slow.admits(120.0, 1) and not full.admits(120.0, 7)
    assert slow.why_not(1) == "takes 1.5 s to answer, with 1 stream"
    assert full.why_not(7) == "is 97% busy with 7 streams"


def test_an_engine_that_hangs_is_not_taken_for_an_idle_one() -> None:
    admission = Admission(0.9)
    admission.most_delay = 4.0
    for second in range(60):
        admission.observe(float(second), busy(second * 0.3), 4, LoadSample(turnaround=1.0))
    stuck = busy(60 * 0.3)._replace(queued=4, running=1)
    for second in range(60, 120):
        admission.observe(float(second), stuck, 4, LoadSample())
    assert not admission.admits(120.0, 4)
    for second in range(120, 200):
        admission.observe(float(second), busy(60 * 0.3), 4, LoadSample())
    assert admission.admits(200.0, 4)


def test_an_engine_that_tells_nothing_admits_all() -> None:
    admission = Admission(0.9)
    admission.observe(0.0, object(), 5)
    assert admission.admits(1.0, 500)
    assert isinstance(Account(name="a", digest=b"").streams, int)
