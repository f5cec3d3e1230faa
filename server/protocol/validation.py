"""Validation of ``start``: can the model do what a client asks for?"""

from __future__ import annotations

import difflib

from ...model.whisper.languages import LANGUAGES
from .errors import InvalidField
from .messages import Start

__all__ = ["validate_start"]


def validate_start(start: Start, languages: tuple[str, ...]) -> Start:
    """Return ``start`` if the model can do what it asks for.

    Args:
        start: a client's first message.
        languages: codes that the model knows; empty for one that knows English only.

    Raises:
        InvalidField: names the field that the model cannot do, and what it takes.
    """
    if start.language is not None and start.languages and start.language not in start.languages:
        raise InvalidField(
            "languages",
            f"languages must have {start.language[:32]!r} in it, which language asks for; "
            "or leave one of the two out",
        )
    if languages:
        asked = [("language", start.language)] if start.language is not None else []
        for field, code in [*asked, *(("languages", code) for code in start.languages)]:
            if code not in languages:
                near = ", ".join(difflib.get_close_matches(code, languages, n=3)) or "en, de, fr"
                raise InvalidField(
                    field,
                    f"{field} {code[:32]!r} is not an ISO 639-1 code that this model knows "
                    f"(such as {near}); leave it out to have it detected",
                )
        return start
    if start.language not in (None, "en"):
        raise InvalidField(
            "language",
            f"language {start.language[:32]!r}: this model knows English only; leave it out, or use "
            "a multilingual model",
        )
    for code in start.languages:
        if code not in LANGUAGES:
            raise InvalidField(
                "languages", f"languages has {code[:32]!r}, which is not a language code of Whisper"
            )
    if start.languages and "en" not in start.languages:
        raise InvalidField(
            "languages",
            "languages must have en in it, or be left out: this model knows English only",
        )
    if start.task != "transcribe":
        raise InvalidField(
            "task",
            "task must be transcribe: this model knows English only; use a multilingual model",
        )
    return start
