from __future__ import annotations

from docs.generate.nodes import nodes
from engine.nodes import NODE_TYPES


def test_every_node_has_a_heading_and_its_inputs() -> None:
    page = nodes()
    for declared in NODE_TYPES:
        _, _, rest = page.partition(f"### {declared.class_type}\n")
        section = rest.partition("\n### ")[0]
        assert declared.description in section
        assert [name for name in declared.all_inputs if f"| `{name}`" not in section] == []


def test_ranges_models_and_outputs_are_said() -> None:
    page = nodes()
    assert "| `steps` | INT, 1 to 10000 | `20` | The number of denoising steps. |" in page
    assert (
        "| `ckpt_name` | a model in `checkpoints/` |  | The checkpoint (model) to load. |" in page
    )
    assert "Outputs: `positive` (CONDITIONING), `negative` (CONDITIONING)" in page
    assert "| `mask` (optional) | MASK |" in page
