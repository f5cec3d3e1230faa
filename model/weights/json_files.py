"""Read the small JSON files that lie beside weights. No torch here."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import WeightsError

__all__ = ["read_heads", "read_json"]


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file.

    Raises:
        WeightsError: missing, not JSON, or not an object.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise WeightsError(f"{path} is missing: get the whole model folder again.") from error
    except ValueError as error:  # bad JSON or bad UTF-8
        raise WeightsError(f"{path} is not valid JSON: get it again.") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} is not a JSON object: get it again.")
    return content


def read_heads(path: Path) -> tuple[tuple[int, int], ...] | None:
    """``alignment_heads`` of a JSON file as (layer, head) pairs; None if it names none.

    Raises:
        WeightsError: missing or malformed.
    """
    pairs = read_json(path).get("alignment_heads")
    if pairs is None:
        return None
    try:
        if not isinstance(pairs, list):
            raise TypeError
        heads = tuple((layer, head) for layer, head in pairs)
        if not all(type(number) is int for pair in heads for number in pair):
            raise TypeError
    except (TypeError, ValueError) as error:
        raise WeightsError(
            f"{path} has alignment_heads that are not [layer, head] pairs."
        ) from error
    return heads or None
