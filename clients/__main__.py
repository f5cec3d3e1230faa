"""``python -m whisper_stream.clients``: the same as the ``whisper-stream`` command."""

import sys

from .cli import main

sys.exit(main())
