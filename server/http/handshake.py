"""Handshakes: whether a websocket may become a stream, and the refusal if not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket

from ..config import ServerConfig
from ..metrics import Metrics
from ..protocol.codec import Codec
from ..protocol.errors import CloseCode, ErrorCode
from ..protocol.messages import SUBPROTOCOLS, Error
from .admission import Admission
from .asgi import send_frame
from .auth import Account, Authenticator, key_of

__all__ = ["Handshake", "Refusal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refused handshake.

    Attributes:
        status: of the HTTP answer.
        reason: one word, for logs and metrics.
        sentence: for the client.
    """

    status: int
    reason: str
    sentence: str


class Handshake:
    """Checks handshakes: origin, key and subprotocol, in this order; later, whether there is room for a stream."""

    def __init__(
        self,
        authenticator: Authenticator,
        admission: Admission,
        metrics: Metrics,
        config: ServerConfig,
    ) -> None:
        self.authenticator = authenticator
        self._admission = admission
        self._metrics = metrics
        self._config = config

    def check(self, websocket: WebSocket) -> Refusal | Account | None:
        """Return the account of the key, None where no key is needed, or the refusal."""
        headers = websocket.headers
        if not self.authenticator.welcomes(headers.get("origin"), headers.get("host", "")):
            sentence = "web pages of this origin may not connect; see --allowed-origins"
            return Refusal(status=403, reason="origin", sentence=sentence)
        offered = websocket.scope.get("subprotocols", [])
        account = None
        if self.authenticator.needs_key:
            account = self.authenticator.account(key_of(headers, websocket.query_params, offered))
            if account is None:
                sentence = "a valid key is needed: as Authorization: Bearer, X-API-Key or ?key="
                return Refusal(status=401, reason="key", sentence=sentence)
        if offered and not any(name in SUBPROTOCOLS for name in offered):
            known = " or ".join(SUBPROTOCOLS)
            sentence = f"none of the offered subprotocols is known; use {known}"
            return Refusal(status=400, reason="subprotocol", sentence=sentence)
        return account

    def full(self, streams: int, account: Account | None) -> tuple[ErrorCode, str] | None:
        """Return an error that says why no further stream may be opened; None: there is room, and it is taken.

        Args:
            streams: open in the whole daemon.
            account: the one that asks; its usage counts this connection already.
        """
        refusal = self._why_full(streams, account)
        if refusal is not None:
            self._metrics.refuse(refusal[0])
        else:
            self._admission.add(asyncio.get_running_loop().time())
        return refusal

    def _why_full(self, streams: int, account: Account | None) -> tuple[ErrorCode, str] | None:
        most = None if account is None else account.most_streams
        if account is not None and most is not None and account.usage.streams > most:
            many = "1 stream" if most == 1 else f"{most} streams"
            return ErrorCode.LIMIT_REACHED, f"this key may have {many} at once"
        if streams >= self._config.max_streams:
            most = self._config.max_streams
            taken = "the only stream is" if most == 1 else f"all {most} streams are"
            return ErrorCode.TOO_MANY_STREAMS, f"{taken} taken; try again later"
        if self._config.max_load > 0:
            if not self._admission.admits(asyncio.get_running_loop().time(), streams):
                why = self._admission.why_not(streams)
                return ErrorCode.OVERLOADED, f"the engine {why}; try again later"
        return None

    async def refuse(self, websocket: WebSocket, refusal: Refusal) -> None:
        """Answer the handshake with HTTP."""
        self._metrics.refuse(refusal.reason)
        await websocket.send_denial_response(
            PlainTextResponse(refusal.sentence + "\n", status_code=refusal.status)
        )

    async def turn_away(self, websocket: WebSocket, codec: Codec) -> None:
        """Refuse an accepted websocket, as there are too many: browsers see no answer to a handshake."""
        code = ErrorCode.TOO_MANY_STREAMS
        self._metrics.refuse(code)
        text = "there are too many connections; try again later"
        await send_frame(websocket, codec.encode(Error(seq=1, code=code, message=text)))
        await websocket.close(CloseCode.TRY_AGAIN_LATER, code)
