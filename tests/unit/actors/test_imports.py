"""What each process of a worker loads: there are many of them, and they start while jobs wait."""

import subprocess
import sys

FORBIDDEN = ("diffusers", "fastapi", "httpx", "sqlalchemy", "torch", "transformers")


def test_the_actors_load_neither_torch_nor_the_database() -> None:
    code = f"import sys, actors.remote; print([m for m in {FORBIDDEN} if m in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
