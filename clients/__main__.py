"""``python -m whisper_stream.clients``: the same as the ``whisper-stream`` command."""

from __future__ import annotations

import sys

from .cli.main import main

sys.exit(main())
