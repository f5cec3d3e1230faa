"""Who may go on with a stream, and who may read along."""

from __future__ import annotations

from whisper_stream.server.stream.identity import StreamIdentity, hash_token, token_matches


def test_the_token_and_nothing_else_is_accepted() -> None:
    identity = StreamIdentity("s", hash_token("secret"))
    assert identity.accepts("secret") and token_matches("secret", identity.token_hash)
    for wrong in ("", "Secret", identity.reader_key, "sécret"):
        assert not identity.accepts(wrong)


def test_the_readers_key_lets_read_and_does_not_change_with_a_restart() -> None:
    before = StreamIdentity("s", hash_token("secret"))
    after = StreamIdentity("s", hash_token("secret"))
    assert before.reader_key == after.reader_key
    assert after.accepts_reader(before.reader_key) and not after.accepts_reader("secret")
    assert not after.accepts_reader("é")
    assert before.watch_path == f"/v1/sessions/s/watch?key={before.reader_key}"


def test_what_is_stored_does_not_tell_the_token() -> None:
    assert b"secret" not in hash_token("secret")
