import subprocess
import sys

import pytest

FORBIDDEN = ("actors", "diffusers", "nats", "ray", "sqlalchemy", "torch", "transformers")


@pytest.mark.parametrize(
    "module", ["serve_app.api", "serve_app.access.api_keys", "serve_app.services"]
)
def test_the_edge_loads_neither_torch_nor_cluster_nor_bus(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {FORBIDDEN} if m in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
