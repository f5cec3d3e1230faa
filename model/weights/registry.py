"""Every published Whisper model: sizes, alignment heads, SHA-256 and address. No torch here.

The hashes, addresses and alignment masks are facts published with the openai-whisper package
(MIT licence); the tests compare them with it.
"""

from __future__ import annotations

import base64
import difflib
import gzip
import os
from dataclasses import dataclass
from functools import cache

from ..errors import UnknownModelError
from ..whisper.dims import ModelDimensions

__all__ = [
    "ALIASES",
    "DOWNLOAD_URL_VARIABLE",
    "PublishedModel",
    "available_models",
    "lookup",
    "unknown_model",
]

DOWNLOAD_URL_VARIABLE = "WHISPER_STREAM_DOWNLOAD_URL"
_PUBLISHED_URL = "https://openaipublic.azureedge.net/main/whisper/models"

ALIASES = {"large": "large-v3", "turbo": "large-v3-turbo"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """One published checkpoint."""

    name: str
    dims: ModelDimensions
    sha256: str  # of the `.pt` file
    size: int  # of the `.pt` file, bytes
    alignment_mask: str  # base85 of gzip of one byte for each (layer, head), layer-major

    @property
    def alignment_heads(self) -> tuple[tuple[int, int], ...]:
        """(decoder layer, head) pairs whose cross-attention follows the audio, in order."""
        return _decode_mask(self.alignment_mask, self.dims.n_text_head)

    @property
    def filename(self) -> str:
        """Name of the published file, and of its copy in a cache."""
        return f"{self.name}.pt"

    @property
    def url(self) -> str:
        """Where the checkpoint is fetched from, see `download_url`."""
        return self.download_url()

    def download_url(self, base_url: str | None = None) -> str:
        """Address of the checkpoint.

        Args:
            base_url: a mirror with the published layout ``<sha256>/<name>.pt``; by default the
                environment variable WHISPER_STREAM_DOWNLOAD_URL, else the published host.
        """
        base = base_url or os.environ.get(DOWNLOAD_URL_VARIABLE) or _PUBLISHED_URL
        return f"{base.rstrip('/')}/{self.sha256}/{self.filename}"


def available_models() -> list[str]:
    """Every name `lookup` knows, aliases too, from the smallest model to the largest."""
    names = list(_models())
    for alias, name in ALIASES.items():
        names.insert(names.index(name) + 1, alias)
    return names


def lookup(name: str) -> PublishedModel:
    """The published model of that name or alias.

    Raises:
        UnknownModelError: there is none; the text suggests the nearest names.
    """
    model = _models().get(ALIASES.get(name, name))
    if model is not None:
        return model
    raise unknown_model(name)


def unknown_model(name: str) -> UnknownModelError:
    """The error for a name that `lookup` does not know."""
    names = available_models()
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the names are {', '.join(names)}."
    return UnknownModelError(
        f"There is no model named {name!r}: {hint}"
        " Give one of the published names, or the path of a weights file or folder."
    )


@cache
def _decode_mask(mask: str, n_heads: int) -> tuple[tuple[int, int], ...]:
    cells = gzip.decompress(base64.b85decode(mask))
    return tuple(divmod(index, n_heads) for index, cell in enumerate(cells) if cell)


def _dims(
    state: int, heads: int, layers: int, vocab: int, *, mels: int = 80, text_layers: int = 0
) -> ModelDimensions:
    return ModelDimensions(
        n_mels=mels,
        n_audio_ctx=1500,
        n_audio_state=state,
        n_audio_head=heads,
        n_audio_layer=layers,
        n_vocab=vocab,
        n_text_ctx=448,
        n_text_state=state,
        n_text_head=heads,
        n_text_layer=text_layers or layers,
    )


# English-only, multilingual, and with Cantonese added.
_EN, _MULTI, _YUE = 51864, 51865, 51866


@cache
def _models() -> dict[str, PublishedModel]:
    models = (
        PublishedModel(
            name="tiny.en",
            dims=_dims(384, 6, 4, _EN),
            sha256="d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
            size=75_571_315,
            alignment_mask="ABzY8J1N>@0{>%R00Bk>$p{7v037`oCl~+#00",
        ),
        PublishedModel(
            name="tiny",
            dims=_dims(384, 6, 4, _MULTI),
            sha256="65147644a518d12f04e32d6f3b26facc3f8dd46e5390956a9424a650c0ce22b9",
            size=75_572_083,
            alignment_mask="ABzY8bu8Lr0{>%RKn9Fp%m@SkK7Kt=7ytkO",
        ),
        PublishedModel(
            name="base.en",
            dims=_dims(512, 8, 6, _EN),
            sha256="25a8566e1d0c1e2231d1c762132cd20e0f96a85d16145c3a00adf5d1ac670ead",
            size=145_261_783,
            alignment_mask="ABzY8;40c<0{>%RzzG;p*o+Vo09|#PsxSZm00",
        ),
        PublishedModel(
            name="base",
            dims=_dims(512, 8, 6, _MULTI),
            sha256="ed3a0b6b1c0edf879ad9b11b1af5a0e6ab5db9205f891f668f8b0e6c6326e34e",
            size=145_262_807,
            alignment_mask="ABzY8KQ!870{>%RzyTQH3`Q^yNP!>##QT-<FaQ7m",
        ),
        PublishedModel(
            name="small.en",
            dims=_dims(768, 12, 12, _EN),
            sha256="f953ad0fd29cacd07d5a9eda5624af0f6bcf2258be67c92b79389873d91e0872",
            size=483_615_683,
            alignment_mask="ABzY8>?_)10{>%RpeA61k&I|OI3I$65C{;;pbCHh0B{qLQ;+}v00",
        ),
        PublishedModel(
            name="small",
            dims=_dims(768, 12, 12, _MULTI),
            sha256="9ecf779972d90ba49c06d968637d720dd632c55bbf19d441fb42bf17a411e794",
            size=483_617_219,
            alignment_mask="ABzY8DmU6=0{>%Rpa?J`kvJ6qF(V^F86#Xh7JUGMK}P<N0000",
        ),
        PublishedModel(
            name="medium.en",
            dims=_dims(1024, 16, 24, _EN),
            sha256="d7440d1dc186f76616474e0ff0b3b6b879abc9d1a4926b7adfa41db2d497ab4f",
            size=1_528_006_491,
            alignment_mask="ABzY8usPae0{>%R7<zz_OvQ{)4kMa0BMw6u5rT}kRKX;$NfYBv00*Hl@qhsU00",
        ),
        PublishedModel(
            name="medium",
            dims=_dims(1024, 16, 24, _MULTI),
            sha256="345ae4da62f9b3d59415adc60127b97c714f32e89e936602e85993674d08dcb1",
            size=1_528_008_539,
            alignment_mask="ABzY8B0Jh+0{>%R7}kK1fFL7w6%<-Pf*t^=N)Qr&0RR9",
        ),
        PublishedModel(
            name="large-v1",
            dims=_dims(1280, 20, 32, _MULTI),
            sha256="e4b87e7e0bf463eb8e6956e646f1e277e901512310def2c24bf0e11bd3c28e9a",
            size=3_086_999_982,
            alignment_mask="ABzY8r9j$a0{>%R7#4sLmoOs{s)o3~84-RPdcFk!JR<kSfC2yj",
        ),
        PublishedModel(
            name="large-v2",
            dims=_dims(1280, 20, 32, _MULTI),
            sha256="81f7c96c852ee8fc832187b0132e569d6c3065a3252ed18e56effd0b6a73e524",
            size=3_086_999_982,
            alignment_mask="ABzY8zd+h!0{>%R7=D0pU<_bnWW*tkYAhobTNnu$jnkEkXqp)j;w1Tzk)UH3X%SZd&fFZ2fC2yj",
        ),
        PublishedModel(
            name="large-v3",
            dims=_dims(1280, 20, 32, _YUE, mels=128),
            sha256="e5b1a55b89c1367dacf97e3e19bfd829a01529dbfdeefa8caeb59b3f1b81dadb",
            size=3_087_371_615,
            alignment_mask="ABzY8gWO1E0{>%R7(9S+Kn!D~%ngiGaR?*L!iJG9p-nab0JQ=-{D1-g00",
        ),
        PublishedModel(
            name="large-v3-turbo",
            dims=_dims(1280, 20, 32, _YUE, mels=128, text_layers=4),
            sha256="aff26ae408abcba5fbf8813c21e62b0941638c5f6eebfb145be0c9839262a19a",
            size=1_617_941_637,
            alignment_mask="ABzY8j^C+e0{>%RARaKHP%t(lGR*)0g!tONPyhe`",
        ),
    )
    return {model.name: model for model in models}
