"""Text to Whisper's tokens and back: byte-pair encoding by tiktoken, special tokens by name.

The vocabularies and the order of the special tokens are those published with the models; see
Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 2.3.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from types import MappingProxyType
from typing import Literal

import tiktoken

from ..errors import DecodingOptionsError
from .languages import LANGUAGES, language_code

__all__ = ["Tokenizer", "get_tokenizer"]

_TIMESTAMPS = 1501  # <|0.00|> to <|30.00|>, one every 20 ms

# GPT-2's pre-tokenizer: contractions, words, numbers and punctuation with their leading space.
_SPLIT_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Marks that annotate a transcript rather than being spoken. A mark is suppressed where it is one
# token, alone or after a space.
_ANNOTATION_MARKS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
# Musical symbols are suppressed by their first token even where they need several: all lie in
# U+2640..U+267F, so that token stands for other pictographs only.
_MUSIC_MARKS = tuple("♩♪♫♬♭♮♯")


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """One vocabulary, with the language and task that its decoder prompt names.

    Build with :func:`get_tokenizer`. ``language`` and ``task`` are None for English-only models.
    """

    encoding: tiktoken.Encoding
    special_tokens: Mapping[str, int]  # "<|endoftext|>" -> id, in id order
    num_languages: int
    language: str | None = None  # ISO code
    task: Literal["transcribe", "translate"] | None = None

    def encode(self, text: str, *, allowed_special: AbstractSet[str] = frozenset()) -> list[int]:
        """Encode text. Names of special tokens are plain text unless in ``allowed_special``."""
        return self.encoding.encode(text, allowed_special=allowed_special, disallowed_special=())

    def decode(self, tokens: Iterable[int]) -> str:
        """Decode tokens, leaving timestamps out. Bytes that are not UTF-8 become U+FFFD."""
        return self.encoding.decode([token for token in tokens if token < self.timestamp_begin])

    def decode_with_timestamps(self, tokens: Iterable[int]) -> str:
        """Decode tokens, with timestamps written as ``<|1.08|>``."""
        return self.encoding.decode(list(tokens))

    @cached_property
    def eot(self) -> int:
        return self.special_tokens["<|endoftext|>"]

    @cached_property
    def sot(self) -> int:
        return self.special_tokens["<|startoftranscript|>"]

    @cached_property
    def sot_lm(self) -> int:
        return self.special_tokens["<|startoflm|>"]

    @cached_property
    def sot_prev(self) -> int:
        return self.special_tokens["<|startofprev|>"]

    @cached_property
    def no_speech(self) -> int:
        return self.special_tokens["<|nospeech|>"]

    @cached_property
    def no_timestamps(self) -> int:
        return self.special_tokens["<|notimestamps|>"]

    @cached_property
    def timestamp_begin(self) -> int:
        return self.special_tokens["<|0.00|>"]

    @cached_property
    def transcribe(self) -> int:
        return self.special_tokens["<|transcribe|>"]

    @cached_property
    def translate(self) -> int:
        return self.special_tokens["<|translate|>"]

    def to_language_token(self, code: str) -> int:
        """Return the token of a language.

        Raises:
            DecodingOptionsError: when this vocabulary has no such language.
        """
        if code not in self.all_language_codes:
            raise DecodingOptionsError(
                f"language {code!r} has no token among the model's {self.num_languages}: "
                "give one of its ISO codes, or use a newer multilingual model."
            )
        return self.special_tokens[f"<|{code}|>"]

    @property
    def language_token(self) -> int:
        """The token of ``language``.

        Raises:
            DecodingOptionsError: when the tokenizer has no language, as for English-only models.
        """
        if self.language is None:
            raise DecodingOptionsError(
                "language is not set in this tokenizer: give it one with a multilingual model."
            )
        return self.to_language_token(self.language)

    @cached_property
    def all_language_codes(self) -> tuple[str, ...]:
        """The ISO codes this vocabulary knows, in token order."""
        return tuple(LANGUAGES)[: self.num_languages]

    @cached_property
    def all_language_tokens(self) -> tuple[int, ...]:
        """The tokens of :attr:`all_language_codes`, in the same order."""
        return tuple(self.special_tokens[f"<|{code}|>"] for code in self.all_language_codes)

    @cached_property
    def sot_sequence(self) -> tuple[int, ...]:
        """Start of transcript, then the language and the task where the model has them."""
        sequence = [self.sot]
        if self.language is not None:
            sequence.append(self.language_token)
        if self.task is not None:
            sequence.append(self.transcribe if self.task == "transcribe" else self.translate)
        return tuple(sequence)

    @cached_property
    def sot_sequence_including_notimestamps(self) -> tuple[int, ...]:
        return (*self.sot_sequence, self.no_timestamps)

    @cached_property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """Tokens of speaker tags, brackets and music signs, sorted: ``suppress_tokens=-1``.

        Common punctuation stays. Hyphen and apostrophe are kept out at the start of a word only.
        """
        suppressed = {self.encode(" -")[0], self.encode(" '")[0]}
        for mark in _ANNOTATION_MARKS:
            for tokens in (self.encode(mark), self.encode(" " + mark)):
                if len(tokens) == 1:
                    suppressed.add(tokens[0])
        for mark in _MUSIC_MARKS:
            suppressed.update((self.encode(mark)[0], self.encode(" " + mark)[0]))
        return tuple(sorted(suppressed))


@cache
def get_tokenizer(
    multilingual: bool,
    *,
    num_languages: int = 99,
    language: str | None = None,
    task: str | None = None,
) -> Tokenizer:
    """Return the tokenizer of a model; the same arguments give the same object.

    Args:
        multilingual: False for the ``.en`` models, which have neither language nor task.
        num_languages: language tokens of the model's vocabulary: 99, or 100 from large-v3 on.
        language: ISO code, English name or alias; English when None.
        task: ``transcribe`` (when None) or ``translate``.

    Raises:
        DecodingOptionsError: when the language is unknown or not in the model's vocabulary, or the
            task or number of languages is none of those above.
    """
    if num_languages not in (99, 100):
        raise DecodingOptionsError(f"num_languages must be 99 or 100, not {num_languages}.")
    code = None if language is None else language_code(language)
    checked_task = _check_task(task)
    encoding, special_tokens = _load_vocabulary(multilingual, num_languages)
    tokenizer = Tokenizer(
        encoding=encoding,
        special_tokens=special_tokens,
        num_languages=num_languages,
        language=(code or "en") if multilingual else None,
        task=(checked_task or "transcribe") if multilingual else None,
    )
    if tokenizer.language is not None:
        tokenizer.to_language_token(tokenizer.language)  # rejects yue where it has no token
    return tokenizer


def _check_task(task: str | None) -> Literal["transcribe", "translate"] | None:
    if task is None:
        return None
    if task == "transcribe":
        return "transcribe"
    if task == "translate":
        return "translate"
    raise DecodingOptionsError(f"task must be transcribe or translate, not {task!r}.")


@cache
def _load_vocabulary(
    multilingual: bool, num_languages: int
) -> tuple[tiktoken.Encoding, Mapping[str, int]]:
    name = "multilingual" if multilingual else "gpt2"
    ranks = _read_ranks(f"{name}.tiktoken")
    names = (
        "<|endoftext|>",
        "<|startoftranscript|>",
        *(f"<|{code}|>" for code in tuple(LANGUAGES)[:num_languages]),
        "<|translate|>",
        "<|transcribe|>",
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nospeech|>",
        "<|notimestamps|>",
        *(f"<|{step * 0.02:.2f}|>" for step in range(_TIMESTAMPS)),
    )
    special_tokens = {special: len(ranks) + index for index, special in enumerate(names)}
    encoding = tiktoken.Encoding(
        name=name,
        explicit_n_vocab=len(ranks) + len(names),
        pat_str=_SPLIT_PATTERN,
        mergeable_ranks=ranks,
        special_tokens=special_tokens,
    )
    return encoding, MappingProxyType(special_tokens)


def _read_ranks(file_name: str) -> dict[bytes, int]:
    """Read the packaged ranks: one base64 token and its rank a line. No network, no cache."""
    words = (
        resources.files(__package__.rpartition(".")[0])
        .joinpath("assets", file_name)
        .read_bytes()
        .split()
    )
    return {
        binascii.a2b_base64(token): int(rank)
        for token, rank in zip(words[::2], words[1::2], strict=True)
    }
