"""Keys, their limits, and origins, without a network."""

from __future__ import annotations

import datetime

import pytest
from whisper_stream.server.errors import ConfigError
from whisper_stream.server.http.auth import (
    Authenticator,
    is_loopback,
    key_of,
    parse_keys,
    read_keys,
)

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
    assert account.count_audio(DAY, 400, 30.0) is None
    assert account.count_audio(DAY, 400, 30.0) is None
    assert account.count_audio(DAY, 100, 1.0) == "1 minutes of audio a day"
    tomorrow = DAY + datetime.timedelta(1)
    assert account.count_audio(tomorrow, 1000, 1.0) is None
    assert account.count_audio(tomorrow, 1, 0.0) == "1000 bytes of audio a day"


def test_keys_read_again_keep_what_was_used() -> None:
    keyed = authenticator(f"anna:{KEY} bytes=10", "otto:another-long-secret")
    before = keyed.account(KEY)
    assert before is not None
    before.count_audio(DAY, 9, 0.0)
    keyed.reload(parse_keys([f"anna:{KEY} bytes=20"], "keys"))
    after = keyed.account(KEY)
    assert after is not None and after.count_audio(DAY, 12, 0.0) == "20 bytes of audio a day"
    before.usage.add_streams(1)
    assert after.usage.streams == 1
    before.usage.add_streams(-1)  # a connection that was opened with the key as it was
    assert after.usage.streams == 0
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
