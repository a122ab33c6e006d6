"""Checks requests for endpoints whose graphs run on a ComfyUI server.

The node types of the server are not known here, so only the structure of a graph is checked. The
server checks node types and values when the job runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from engine.interface import (
    EngineError,
    FieldError,
    Graph,
    GraphInvalid,
    ParametersInvalid,
    parse_graph,
)
from serve_app.acceptance.compilation import CheckedBody, RequestCompiler, draw_seed
from serve_app.acceptance.inline_images import InlineImage

_SHOWN_NAMES = 20


class ComfyUICompiler(RequestCompiler):
    """Compiles the request bodies of one key for one endpoint with the engine `comfyui`."""

    def _graph(self, prompt: object) -> Graph:
        return parse_graph(prompt, self.catalogue, self.limits, draw_seed=draw_seed)

    def _body(self, recorded: dict[str, Any], graph: Graph, **more: Any) -> CheckedBody:
        return ComfyUIBody(self, recorded, images=0, graph=graph, **more)

    def _diffusion(self, body: Any, excess_bytes: int) -> CheckedBody:  # noqa: ARG002 - refuses all
        """Raises ParametersInvalid, because a ComfyUI server runs graphs only."""
        message = (
            f"the endpoint {self.endpoint.id} runs workflows on a ComfyUI server: send a workflow, "
            "or name another endpoint"
        )
        raise ParametersInvalid((FieldError("not_supported", message, "endpoint"),))

    def checkpoint(self) -> str | None:
        """Return None, because the models of the server are not known here."""
        return None


class ComfyUIBody(CheckedBody):
    """A body whose graph a ComfyUI server will check. The cost of its graph is not known."""

    def with_file_sizes(self, _: Mapping[str, tuple[int, int]]) -> CheckedBody:
        return self

    def require_files(self, known: Collection[str]) -> None:
        """Raise GraphInvalid if a named file is not in `known`."""
        missing = next(name for name in self.input_files if name not in known)
        shown = ", ".join([*known][:_SHOWN_NAMES]) or "none"
        details = f"there is no upload {missing[:80]!r}; there are: {shown}"
        raise GraphInvalid("value_not_in_list", "An input file does not exist", details)

    def refusal_of(self, _: InlineImage, why: str) -> EngineError:
        return GraphInvalid("custom_validation_failed", "The image cannot be used", why)
