"""``serve --debug``: what is shown of streams, to whom, and for how long."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.errors import ConfigError
from whisper_stream.server.http.auth import Authenticator
from whisper_stream.server.http.debug import check_debug
from whisper_stream.server.protocol import messages as wire

from ...helpers.server_rig import daemon, speech

KEY = "k" * 16
OTHER = "o" * 16


def get(address: str, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
        return json.load(answer)


def status(address: str, **headers: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(address, **headers)
    refused.value.close()
    return refused.value.code


def test_a_stream_is_shown_on_this_machine_until_it_is_deleted() -> None:
    with daemon(debug=True) as running, running.connect() as peer:
        peer.send(wire.Start())
        ready = peer.receive()
        assert isinstance(ready, wire.Ready)
        peer.audio(speech(1.0))
        peer.send(wire.Eos())
        peer.until(wire.Done)
        at = f"{running.http}/debug/streams"
        assert get(at) == [{"id": ready.session, "state": "done"}]
        snapshot = get(f"{at}/{ready.session}")
        assert len(snapshot["words"]) == 2 and len(snapshot["peaks"]) == 100
        assert snapshot["summary"]["Model"] == "scripted"
        assert status(at, Host="captions.test") == 403  # a name that was pointed here
        bearer = {"Authorization": f"Bearer {ready.token}"}
        url = f"{running.http}/v1/sessions/{ready.session}"
        urllib.request.urlopen(urllib.request.Request(url, headers=bearer, method="DELETE")).close()
        assert get(at) == [] and status(f"{at}/{ready.session}") == 404


def test_it_is_off_unless_it_is_asked_for() -> None:
    with daemon() as running:
        assert status(f"{running.http}/debug") == status(f"{running.http}/debug/streams") == 404


def test_with_keys_only_the_one_named_debug_sees_streams(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"debug:{KEY}\nanna:{OTHER}\n")
    with daemon(debug=True, api_keys=str(keys)) as running:
        at = f"{running.http}/debug/streams"
        assert get(at, **{"X-API-Key": KEY}) == []
        assert status(at) == status(at, **{"X-API-Key": OTHER}) == 401
        with urllib.request.urlopen(f"{running.http}/debug") as page:
            rules = page.headers["Content-Security-Policy"].split("; ")
    assert rules[:2] == ["default-src 'none'", "script-src 'self'"]
    assert not any("unsafe" in rule or "*" in rule for rule in rules)


def test_without_a_key_it_is_not_shown_to_a_network() -> None:
    config = ServerConfig(host="0.0.0.0", debug=True)
    with pytest.raises(ConfigError, match="listen on 127.0.0.1, or give a key named debug"):
        check_debug(config, Authenticator([], [], local=False))
