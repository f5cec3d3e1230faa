"""One row of greedy decoding as a state machine: what to feed the decoder next, and what its answer means.

The draft is a guess at the text, usually the hypothesis of half a second ago. One decoder pass over it
gives, at every position, the token the model would choose there; the guess is accepted as far as it
agrees and ordinary steps go on from the first disagreement. The result is that of decoding without a
draft (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, at
temperature 0), and the agreeing part is what two consecutive hypotheses have in common.

No torch here: one row alone and many rows in a batch go through the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["LOOKAHEAD", "GreedyRow"]

LOOKAHEAD = 16  # draft tokens proposed again after a disagreement
_LOOP_REPEATS = 4  # an n-gram said this often in a row at the end is a loop
_LOOP_LONGEST = 16  # tokens in such an n-gram


class GreedyRow:
    """Feed ``feed()``, give what was chosen after each of the fed tokens to ``take``; until ``done``.

    ``initial`` is fed first, with the draft behind it; the first choice is the one after ``initial``.
    """

    def __init__(
        self,
        initial: Sequence[int],
        *,
        eot: int,
        context: int,
        draft: Sequence[int] = (),
        max_tokens: int = 224,
    ) -> None:
        """``context``: how many tokens the decoder has places for."""
        self.initial = tuple(initial)
        self.max_tokens = max(0, min(max_tokens, context - len(self.initial)))
        self.tokens: list[int] = []  # after the initial ones, without end-of-text
        self.logprobs: list[
            float
        ] = []  # of each of ``tokens``, then of end-of-text if it was reached
        self.accepted = 0  # draft tokens confirmed before the first disagreement
        self.passes = 0  # answers taken
        self.kept = 0  # tokens of the last feed that were right
        self.looped = False  # stopped because the text had begun to repeat itself
        self.done = False
        self.ended = False  # by end-of-text
        guess = list(draft)
        if eot in guess:
            guess = guess[: guess.index(eot)]  # no text goes on after its end
        self._draft = guess[: max(0, self.max_tokens - 1)]
        self._eot = eot
        self._at = 0  # where in the draft we would be, were it right again
        self._proposal: list[int] = self._draft

    @property
    def length(self) -> int:
        """Tokens before the next one to be chosen: the initial ones and the text."""
        return len(self.initial) + len(self.tokens)

    @property
    def start(self) -> int:
        """The position of the first token of ``feed``."""
        return 0 if self.passes == 0 else self.length - 1

    def feed(self, most: int = LOOKAHEAD + 1) -> list[int]:
        """The tokens to run next; after the first pass, at most ``most``: the last one, and a guess."""
        if self.passes == 0:
            return [*self.initial, *self._draft]
        last = self.tokens[-1]
        ahead = self._resume(last)
        room = min(LOOKAHEAD, most - 1, self.max_tokens - len(self.tokens) - 1)
        self._proposal = [] if ahead is None else self._draft[ahead : ahead + max(0, room)]
        if ahead is not None:
            self._at = ahead
        return [last, *self._proposal]

    def take(self, chosen: Sequence[int], logprobs: Sequence[float]) -> None:
        """``chosen``: the tokens after the last initial one and each of the draft, or after each of ``feed``."""
        agreed = _agreement(chosen, self._proposal)
        if self.passes == 0:
            self.accepted = agreed
        self.passes += 1
        self.kept = agreed + 1
        if self.max_tokens == 0:
            self.done = True
            return
        known = len(self.tokens)
        self.tokens += chosen[: agreed + 1]
        self.logprobs += logprobs[: agreed + 1]
        self._at += agreed + 1
        # several tokens are confirmed at once: a loop ends where it would have without
        loop = _loop_end(self.tokens, known + 1, self.max_tokens)
        if loop is not None:
            del self.tokens[loop:], self.logprobs[loop:]
            self.looped = self.done = True
        elif self.tokens[-1] == self._eot:
            self.tokens.pop()
            self.ended = self.done = True
        else:
            self.done = len(self.tokens) >= self.max_tokens

    def _resume(self, last: int) -> int | None:
        """Where the draft may go on after ``last``: the text often falls back in step after a changed word."""
        draft = self._draft
        for index in range(max(0, self._at - 2), min(len(draft) - 1, self._at + 4)):
            if draft[index] == last:
                return index + 1
        return None


def _agreement(chosen: Sequence[int], draft: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    for index, (a, b) in enumerate(zip(chosen, draft, strict=False)):
        if a != b:
            return index
    return min(len(chosen), len(draft))


def _loop_end(tokens: Sequence[int], first: int, limit: int) -> int | None:
    """The least number of ``tokens``, from ``first`` on and below ``limit``, that end in a loop."""
    for count in range(first, min(len(tokens), limit - 1) + 1):
        if _loops(tokens[max(0, count - _LOOP_LONGEST * _LOOP_REPEATS) : count]):
            return count
    return None


def _loops(tokens: Sequence[int]) -> bool:
    """Whether the end of ``tokens`` is one n-gram, said again and again."""
    last = tokens[-1] if tokens else None
    for size in range(1, min(_LOOP_LONGEST, len(tokens) - 1) + 1):
        if tokens[-1 - size] != last:
            continue
        span = size * _LOOP_REPEATS if size >= 3 else 12
        if len(tokens) < span:
            continue
        tail = tokens[-span:]
        if all(tail[i] == tail[i % size] for i in range(size, span)):
            return True
    return False
