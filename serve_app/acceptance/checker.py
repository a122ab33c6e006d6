"""From a request body to what is recorded of it: checked, seeds drawn. No HTTP, no log."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from engine.errors import FieldError, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import CHECKPOINTS
from engine.graph.seeds import resolve_seeds
from engine.graph.validation import validate
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters, with_seed
from events.store.records import Endpoint
from events.types import Flavour
from settings.graph import GraphSettings

_RECORDED = ("prompt", "extra_data")
"""Members of a workflow body that a run needs; `client_id` and the like are accepted, not kept."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is recorded, and how many images are asked for: 0 where only the run can tell."""

    request: dict[str, Any]
    images: int
    input_files: tuple[str, ...] = ()
    """The uploads that it names."""


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks bodies against what one endpoint takes."""

    catalogue: Catalogue
    limits: Limits
    default_checkpoint: str | None

    def check(self, flavour: Flavour, body: Any) -> Asked:
        """Raises GraphInvalid, ParametersInvalid."""
        return self._workflow(body) if flavour is Flavour.WORKFLOW else self._diffusion(body)

    def _workflow(self, body: Any) -> Asked:
        members = body if isinstance(body, dict) else {}
        if not isinstance(members.get("extra_data", {}), dict | None):
            raise ParametersInvalid((FieldError("dict_type", "must be an object", "extra_data"),))
        recorded = {name: members[name] for name in _RECORDED if name in members}
        recorded["prompt"] = resolve_seeds(recorded.get("prompt"), draw_seed)
        graph = validate(recorded["prompt"], self.catalogue, self.limits)
        return Asked(recorded, images=0, input_files=graph.input_files)

    def require_files(self, body: Any, known: Collection[str]) -> None:
        """Raises GraphInvalid where a workflow that is valid else names a file beside `known`."""
        prompt = resolve_seeds(body["prompt"], draw_seed)
        validate(prompt, self.catalogue, self.limits, known)

    def _diffusion(self, body: Any) -> Asked:
        sent = parse_parameters(body)
        parameters = with_seed(sent, draw_seed)
        compiled = compile_parameters(
            parameters, self.catalogue, self.limits, default_checkpoint=self.default_checkpoint
        )
        validate(compiled.prompt, self.catalogue, self.limits)
        recorded = {**body, "seed": parameters.seed}
        if sent.checkpoint is None:
            # The default may be another one when the job is repeated.
            recorded["sd_model_checkpoint"] = self.default_checkpoint
        return Asked(recorded, images=parameters.images)


def checker_for(
    endpoint: Endpoint,
    catalogue: Catalogue,
    settings: GraphSettings,
    *,
    default_checkpoint: str | None,
) -> Checker:
    """`default_checkpoint`: where the endpoint has none of its own."""
    default = endpoint.checkpoint or default_checkpoint
    return Checker(
        catalogue=catalogue,
        limits=Limits(
            max_nodes=settings.max_nodes,
            max_side=settings.max_side_px,
            max_steps=endpoint.max_steps,
            max_batch=settings.max_batch,
            max_text_chars=settings.max_prompt_chars,
            max_pixels=endpoint.max_pixels,
        ),
        default_checkpoint=default or next(iter(catalogue.models.names(CHECKPOINTS)), None),
    )


def draw_seed() -> int:
    """32 bits, as WebUI draws them: a client's JSON reader may lose digits above 2**53."""
    return secrets.randbelow(2**32)


def fingerprint_of(
    flavour: Flavour, *, endpoint: str, callback_url: str | None, alone: bool, body: bytes
) -> str:
    """Tells a repeat from another request: over all that was asked, before seeds are drawn."""
    callback = "" if callback_url is None else f"={callback_url}"
    asked = "\0".join((flavour, endpoint, callback, *(["alone"] if alone else [])))
    return hashlib.sha256(asked.encode("utf-8", "surrogatepass") + b"\0" + body).hexdigest()
