"""The options of a stream, and the sample rate that all of the streamer works at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..model.media.pcm import SAMPLE_RATE
from ..model.whisper.languages import LANGUAGES
from .jobs import Task

__all__ = ["SAMPLE_RATE", "DetectorName", "PolicyName", "StreamConfig"]

DetectorName = Literal["webrtc", "silero"]
PolicyName = Literal["local-agreement", "align-att", "either"]

_POSITIVE = ("update_interval", "endpoint_silence", "attention_margin", "soft_window", "max_window")
_NOT_NEGATIVE = (
    "show_margin",
    "preroll",
    "context_silence",
    "context_seconds",
    "prompt_reset_silence",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Options of one stream: how it is cut, decoded and committed. Durations are seconds.

    Raises:
        ValueError: options that make no sense, alone or together; names the field.
    """

    # Speech
    detector: DetectorName = "webrtc"  # tells speech from noise
    endpoint_silence: float = 0.6  # silence that ends an utterance
    preroll: float = 0.4  # audio kept before detected speech

    # Text
    language: str | None = None  # ISO code; None: it is detected on the first speech
    languages: tuple[str, ...] = ()  # codes that may be detected; empty: all
    task: Task = "transcribe"
    prompt: str = ""  # context or vocabulary given by the client
    hotwords: str = ""  # words to expect, such as names; always part of the prompt
    carry_prompt: bool = True  # the prompt stays in front; False: it is for the first window alone
    condition_on_previous: bool = True  # text that has left the window becomes part of the prompt
    prompt_reset_silence: float = 8.0  # a longer silence drops that text

    # Windows
    update_interval: float = 0.4  # new audio between two updates, at least
    soft_window: float = 12.0  # a longer window is shortened at a committed word
    max_window: float = 28.0  # the longest window
    context_silence: float = (
        2.0  # after a shorter pause the window goes on from the words before it
    )
    context_seconds: float = 6.0  # audio kept for that, at most
    max_segment: float = 30.0  # a longer segment is closed at a committed word
    buffer_seconds: float = 60.0  # audio held; feeding more must wait

    # Coverage: voice that no word explains is decoded on its own
    unheard_voice: float = 0.6  # voice after the last word, from which an update is doubted
    unheard_updates: int = 2  # doubted updates in a row before that
    unheard_end: float = 0.4  # voice after the last word of an utterance, from which on it is
    trial_logprob: float = -0.5  # its text is taken from this mean log-probability on
    last_trial_logprob: float = -0.35  # and at the end of an utterance, from this one on

    # Commits
    policy: PolicyName = "local-agreement"
    agreement: int = 2  # of local-agreement: hypotheses that must agree before a commit
    commit_margin: float = 0.2  # a word that ends closer to the end of the audio may be half a word
    commit_probability: float = 0.8  # a word that is less likely needs the margin below
    doubtful_margin: float = 1.2  # audio that must follow such a word
    attention_margin: float = 0.6  # of align-att: audio that must follow what a word attends to
    show_margin: float = (
        0.15  # an unstable word that ends closer to the end of the audio is not shown
    )

    def __post_init__(self) -> None:
        for name, known in (("detector", DetectorName), ("policy", PolicyName)):
            if getattr(self, name) not in get_args(known):
                names = ", ".join(get_args(known))
                raise ValueError(f"{name} must be one of {names}, not {getattr(self, name)!r}")
        unknown = [code for code in self.languages if code not in LANGUAGES]
        if unknown:
            raise ValueError(f"languages has {unknown[0]!r}: use language codes of Whisper")
        if self.agreement < 2:
            raise ValueError(f"agreement must be at least 2, not {self.agreement}")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0 seconds, not {getattr(self, name)}")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be below 0 seconds, not {getattr(self, name)}")
        if self.max_segment < 1:
            raise ValueError(f"max_segment must be at least 1 second, not {self.max_segment}")
        if not self.soft_window <= self.max_window <= 30.0:
            raise ValueError("windows must satisfy soft_window <= max_window <= 30 seconds")
        if self.buffer_seconds < self.max_window + 1:
            raise ValueError("buffer_seconds must exceed max_window by at least a second")
        # what is kept through a pause, or a client that waits for room would wait for ever
        if self.buffer_seconds < self.context_seconds + self.context_silence + self.preroll + 1:
            raise ValueError(
                "buffer_seconds must exceed context_seconds, context_silence and preroll together"
                " by at least a second"
            )
