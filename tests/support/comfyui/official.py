"""ComfyUI's own graphs: those in its example pictures, and its templates.

`tests/golden/comfyui_examples.json` has those of github.com/comfyanonymous/ComfyUI_examples for
SD1, SD2 and SDXL, whose licence allows copies. Templates are in a package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from engine.graph.catalogue import Catalogue
from engine.graph.declarations import Choice, Input, Link, default_of
from engine.graph.editor_file.conversion import prompt_of
from engine.graph.models_folder import HYPERNETWORKS, ModelsFolder
from engine.nodes import NODE_TYPES

Graph = dict[str, Any]
_EXAMPLES = Path(__file__).parents[2] / "golden" / "comfyui_examples.json"


def examples() -> dict[str, Graph]:
    """Return new copies of the graphs by the paths of their pictures."""
    found: dict[str, Graph] = json.loads(_EXAMPLES.read_text())
    return {name: with_defaults(graph) for name, graph in found.items()}


def template(name: str, catalogue: Catalogue) -> Graph:
    """The prompt of a template of the package `comfyui-workflow-templates-json`."""
    place = files("comfyui_workflow_templates_json") / "templates" / f"{name}.json"
    return with_defaults(prompt_of(json.loads(place.read_text()), catalogue.declaration))


def with_defaults(graph: Graph) -> Graph:
    """Return the graph with defaults for missing inputs, because some graphs are older than inputs
    of today. ComfyUI's page adds these defaults too.
    """
    declared = {each.class_type: each for each in NODE_TYPES}
    for node in graph.values():
        if node["class_type"] in declared:
            inputs = declared[node["class_type"]].inputs.items()
            defaults = {name: _default(each) for name, each in inputs if not isinstance(each, Link)}
            node["inputs"] = defaults | node["inputs"]
    return graph


def _default(declared: Input) -> Any:
    found = default_of(declared)
    return "first.safetensors" if found is None and isinstance(declared, Choice) else found


def with_models(graph: Graph, root: Path) -> Catalogue:
    """Return a catalogue of empty files below `root` with the names of the graph's models.

    In the graph, names of pickled files are replaced by names of safetensors files.
    """
    catalogue = Catalogue(ModelsFolder(root))
    for folder, name, inputs in _models(graph, catalogue):
        suffix = ".pt" if folder == HYPERNETWORKS else ".safetensors"
        path = Path(inputs[name].replace("\\", "/")).with_suffix(suffix)
        inputs[name] = path.as_posix()
        place = root / folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return catalogue


def renamed(graph: Graph, catalogue: Catalogue, names: Mapping[str, str]) -> Graph:
    """Change the graph to use these models by folder, with one step of 64 x 64, and return it. A
    key of `names` may be an input's name instead of the folder.
    """
    for folder, name, inputs in _models(graph, catalogue):
        inputs[name] = names.get(name) or names[folder]
    sizes = {"width": 64, "height": 64, "steps": 1, "batch_size": 1}
    for each in graph.values():
        for name in each["inputs"].keys() & sizes.keys():
            each["inputs"][name] = sizes[name]
    return graph


def _models(graph: Graph, catalogue: Catalogue) -> list[tuple[str, str, dict[str, Any]]]:
    """The inputs that name models: the folder, the input's name, and the inputs of the node."""
    return [
        (declared.folder, name, each["inputs"])
        for each in graph.values()
        if (node := catalogue.node(each["class_type"]))
        for name, declared in node.all_inputs.items()
        if isinstance(declared, Choice) and declared.folder and name in each["inputs"]
    ]
