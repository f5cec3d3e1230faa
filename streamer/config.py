"""Options of one stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..model.media.pcm import SAMPLE_RATE
from ..model.whisper.languages import LANGUAGES
from .jobs import Task

__all__ = ["SAMPLE_RATE", "DetectorName", "PolicyName", "StreamConfig"]

DetectorName = Literal["webrtc", "silero"]
PolicyName = Literal["local-agreement", "align-att", "either"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """How one stream is cut, decoded and committed. Durations are seconds."""

    language: str | None = None  # ISO code; None: detected on the first speech
    task: Task = "transcribe"
    prompt: str = ""  # context or vocabulary given by the client
    languages: tuple[str, ...] = ()  # where detected: one of these; none given: any
    hotwords: str = ""  # words to expect, such as names; always part of the prompt
    carry_prompt: bool = True  # the prompt stays in front; False: it is for the first window alone
    detector: DetectorName = "webrtc"  # of speech
    policy: PolicyName = "local-agreement"
    attention_margin: float = 0.6  # of align-att: audio that must follow what a word attends to
    show_margin: float = (
        0.15  # words of the tail that end closer to the end of the audio are held back
    )
    agreement: int = 2  # LocalAgreement-n: hypotheses that must agree before a commit
    commit_margin: float = 0.2  # a word that ends closer to the end of the audio may be half a word
    commit_probability: float = 0.8  # of a word; one less likely must wait for more audio
    doubtful_margin: float = 1.2  # that long a time after its end
    update_interval: float = 0.4  # least new audio between two updates
    max_segment: float = 30.0  # a longer segment is closed at a committed word
    endpoint_silence: float = 0.6  # silence that ends an utterance
    preroll: float = 0.4  # audio kept before detected speech
    context_silence: float = (
        2.0  # after a shorter pause the window goes on from what was said before
    )
    context_seconds: float = 6.0  # of such audio kept, at most
    soft_window: float = 12.0  # the window is trimmed at a committed word once longer
    max_window: float = 28.0  # the window never grows past this
    buffer_seconds: float = 60.0  # audio held; feeding more must wait
    condition_on_previous: bool = True  # scrolled-out text becomes the prompt
    prompt_reset_silence: float = 8.0  # a longer silence drops that prompt

    def __post_init__(self) -> None:
        if self.agreement < 2:
            raise ValueError(f"agreement must be at least 2, not {self.agreement}")
        for name in (
            "update_interval",
            "endpoint_silence",
            "attention_margin",
            "soft_window",
            "max_window",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0 seconds, not {getattr(self, name)}")
        if not self.soft_window <= self.max_window <= 30.0:
            raise ValueError("windows must satisfy soft_window <= max_window <= 30 seconds")
        if self.detector not in get_args(DetectorName):
            raise ValueError(
                f"detector must be one of {', '.join(get_args(DetectorName))}, not {self.detector!r}"
            )
        if self.policy not in get_args(PolicyName):
            raise ValueError(
                f"policy must be one of {', '.join(get_args(PolicyName))}, not {self.policy!r}"
            )
        if self.max_segment < 1:
            raise ValueError(f"max_segment must be at least 1 second, not {self.max_segment}")
        unknown = [code for code in self.languages if code not in LANGUAGES]
        if unknown:
            raise ValueError(f"languages has {unknown[0]!r}, which is no language code of Whisper")
        for name in (
            "show_margin",
            "preroll",
            "context_silence",
            "context_seconds",
            "prompt_reset_silence",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be below 0 seconds, not {getattr(self, name)}")
        if self.buffer_seconds < self.max_window + 1:
            raise ValueError("buffer_seconds must exceed max_window by at least a second")
        # what is kept through a pause, or a client that waits for room would wait for ever
        if self.buffer_seconds < self.context_seconds + self.context_silence + self.preroll + 1:
            raise ValueError(
                "buffer_seconds must exceed context_seconds, context_silence and preroll together"
                " by at least a second"
            )
