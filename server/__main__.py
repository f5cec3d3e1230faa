"""``python -m whisper_stream.server``."""

from __future__ import annotations

import sys

from .daemon.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
