"""Habits of the tests that a reader of a change may miss: no sleep, and nothing private to somebody else."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAMED_TUPLES = {"_fields", "_replace", "_asdict", "_make"}  # public, in spite of their names

# "file: expression", and why it stays. What is not needed any longer fails the test, too.
ALLOWED = {
    "clients/cli/test_transcribe_flags.py: parser._actions": "argparse lists flags nowhere else",
    "helpers/ingress_clients.py: time.sleep": "polls another process, for 20 s at most",
    "helpers/ingress_rig.py: os._exit": "how the standard library spells a crash",
    "helpers/pictures.py: time.sleep": "makes pictures; tests nothing",
    "helpers/reconnect_rig.py: asyncio.sleep": "speaks at the pace that a test asks for",
    "model/cpu/test_compute_types.py: torch.cpu._is_amx_tile_supported": "torch has no other",
    "model/gpu/test_decoder.py: whisper_stream.model.gpu.encoder._round": "the rounding of a GPU, on a CPU",
    "model/test_parity_doc.py: transcribe_parser()._option_string_actions": "argparse lists flags nowhere else",
    "model/weights/test_registry.py: whisper._ALIGNMENT_HEADS": "openai-whisper's tables are private",
    "model/weights/test_registry.py: whisper._MODELS": "openai-whisper's tables are private",
    "project/test_site.py: ssl._create_unverified_context": "the certificate is made for the test",
    "server/cluster/test_supervisor.py: time.sleep": "tries until a process is started again",
}


def _exceptions(tree: ast.AST) -> Iterator[str]:
    """Yield every sleep and every use of a private name that is another object's."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep") as called,
                args=[*arguments],
            ):
                # asyncio.sleep(0) lets other tasks run, and takes no time
                if not (
                    arguments and isinstance(arguments[0], ast.Constant) and not arguments[0].value
                ):
                    yield ast.unparse(called)
            case ast.Attribute(
                value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))
            ):
                pass
            case ast.Attribute(attr=name) if _is_private(name):
                yield ast.unparse(node)
            case ast.ImportFrom(names=names, module=module):
                yield from (f"{module}.{each.name}" for each in names if _is_private(each.name))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLES


def test_tests_neither_sleep_nor_look_behind_interfaces() -> None:
    found = Counter(
        f"{path.relative_to(TESTS).as_posix()}: {each}"
        for path in sorted(TESTS.rglob("*.py"))
        for each in _exceptions(ast.parse(path.read_text()))
    )
    assert sorted(found.keys() - ALLOWED.keys()) == []
    assert sorted(ALLOWED.keys() - found.keys()) == [], "take what is mended out of ALLOWED"
