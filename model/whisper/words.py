"""Tokens to words: where words begin and end, and which punctuation belongs to which word."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .tokenizer import Tokenizer

__all__ = [
    "APPEND_PUNCTUATIONS",
    "PREPEND_PUNCTUATIONS",
    "MergedWord",
    "merge_punctuations",
    "split_to_word_tokens",
]

PREPEND_PUNCTUATIONS = "\"'“¿([{-"
APPEND_PUNCTUATIONS = "\"'.。,，!！?？:：”)]}、"

_SPACELESS_LANGUAGES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_REPLACEMENT = "\ufffd"


def split_to_word_tokens(
    tokenizer: Tokenizer, tokens: Sequence[int], language: str | None
) -> tuple[list[str], list[list[int]]]:
    """Split tokens into words, each with its own tokens; joined, these are all the tokens again.

    Languages written without spaces (zh, ja, th, lo, my, yue) have no word boundaries short of a
    dictionary, so each run of tokens that makes whole characters is a word of its own.
    """
    characters = _split_at_characters(tokenizer, tokens)
    if language in _SPACELESS_LANGUAGES:
        pieces = characters
    else:
        pieces = _join_at_spaces(characters, first_special=tokenizer.eot)
    return [text for text, _ in pieces], [word_tokens for _, word_tokens in pieces]


@lru_cache(maxsize=16_384)
def _text_of(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.decode_with_timestamps([token])


def _split_at_characters(
    tokenizer: Tokenizer, tokens: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """Cut after every token that completes a character."""
    whole_text = tokenizer.decode_with_timestamps(tokens)
    pieces: list[tuple[str, list[int]]] = []
    pending: list[int] = []
    offset = 0  # of the pending text in whole_text
    text = ""
    for token in tokens:
        pending.append(token)
        # most tokens are whole characters, and are met again and again
        text = (
            _text_of(tokenizer, token)
            if len(pending) == 1
            else tokenizer.decode_with_timestamps(pending)
        )
        broken = text.find(_REPLACEMENT)
        # A replacement character that the whole text has too will not be mended by later tokens.
        if broken < 0 or whole_text[offset + broken :][:1] in ("", _REPLACEMENT):
            pieces.append((text, pending))
            pending = []
            offset += len(text)
    if pending:
        pieces.append((text, pending))
    return pieces


def _join_at_spaces(
    pieces: Sequence[tuple[str, list[int]]], *, first_special: int
) -> list[tuple[str, list[int]]]:
    """Join pieces up to the next space, punctuation mark or special token."""
    words: list[tuple[str, list[int]]] = []
    for text, tokens in pieces:
        starts_word = (
            not words
            or tokens[0] >= first_special
            or text.startswith(" ")
            or text.strip() in string.punctuation
        )
        if starts_word:
            words.append((text, list(tokens)))
        else:
            before, before_tokens = words[-1]
            words[-1] = (before + text, before_tokens + tokens)
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedWord:
    """A word with the punctuation that belongs to it."""

    text: str
    members: tuple[int, ...]  # indices of the given words it is made of, in order
    core: int  # the member that is the word itself, and whose times count


def merge_punctuations(
    words: Sequence[str],
    prepended: str = PREPEND_PUNCTUATIONS,
    appended: str = APPEND_PUNCTUATIONS,
) -> list[MergedWord]:
    """Attach opening punctuation to the word after it, closing punctuation to the word before it.

    ``words`` keep their leading spaces. Empty words are dropped.
    """
    texts = list(words)
    members = [[index] for index in range(len(texts))]
    target = len(texts) - 1
    for index in range(len(texts) - 2, -1, -1):
        if texts[index].startswith(" ") and texts[index].strip() in prepended:
            texts[target] = texts[index] + texts[target]
            members[target] = members[index] + members[target]
            texts[index], members[index] = "", []
        else:
            target = index
    target = 0
    for index in range(1, len(texts)):
        if not texts[target].endswith(" ") and texts[index] in appended:
            texts[target] += texts[index]
            members[target] += members[index]
            texts[index], members[index] = "", []
        else:
            target = index
    return [
        MergedWord(text=text, members=tuple(members[index]), core=index)
        for index, text in enumerate(texts)
        if text
    ]
