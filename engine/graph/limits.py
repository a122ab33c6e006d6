"""How large the requests may be that the service accepts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.errors import TooLarge
from engine.graph.declarations import Int

MAX_SCHEDULE_SIGMAS = 1_000_000
"""The longest schedule that is computed, of which a low denoise leaves the end."""
_MADE_TEXTS = 16
"""So many texts of the longest kind may the nodes of a graph make in all."""
_EXPRESSION_CHARS = 32_768
"""So many characters may the expressions of a graph have. Each is 2 µs of work or more, in HTTP
replicas and wherever else the graph is checked."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest values that the service accepts; they narrow the ranges that nodes declare."""

    max_nodes: int = 1000
    max_node_id_chars: int = 128
    min_side: int = 16
    max_side: int = 4096
    max_steps: int = 10_000
    max_batch: int = 16
    max_text_chars: int = 32_768
    """The length of one text. Every 75 tokens are one more chunk to encode and to attend to."""
    max_pixels: int = 2**24
    """The product of width, height and batch size."""
    max_cost: float = 2000.0
    """The work of a job in megapixel-steps. Here and below, 0 is any number; see `cost.Cost`."""
    max_live_bytes: int = 2 * 2**30
    """What is alive at once of the values that the nodes of a job make."""
    max_conditioning_rows: int = 64
    """The rows of conditioning of one sampler."""
    max_tokens: int = 65_536
    """The tokens of one conditioning."""
    max_merged_models: int = 4
    """The models with LoRAs merged into them that are alive at once."""
    max_outputs: int = 256
    """The images and latents that a job saves."""

    def narrowed(self, max_cost: float) -> Limits:
        """The limits with that `max_cost`, where it is the lower one."""
        return replace(self, max_cost=min(self.max_cost or max_cost, max_cost or self.max_cost))

    def bounds(self, declared: Int) -> tuple[int, int]:
        """The lowest and the highest value of an integer input; both are allowed."""
        match declared.limit:
            case "side":
                return max(declared.min, self.min_side), min(declared.max, self.max_side)
            case "longest_side":
                return declared.min, min(declared.max, self.max_side)
            case "steps":
                return declared.min, min(declared.max, self.max_steps)
            case "batch":
                return declared.min, min(declared.max, self.max_batch)
            case None:
                return declared.min, declared.max

    def require_batch(self, count: int, *, width: int, height: int) -> None:
        """Raise TooLarge for a batch that is too large; `width` and `height` are in pixels."""
        pixels = count * width * height
        if count > self.max_batch or pixels > self.max_pixels:
            raise TooLarge(
                f"A batch of {count} images of {width} x {height} pixels is too large: at most "
                f"{self.max_batch} images and {self.max_pixels} pixels are taken at once."
            )


class MadeTexts:
    """How much text the nodes of a graph have made so far, for each may double what it is given;
    and how long the expressions are that they computed.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = self._left = _MADE_TEXTS * limits.max_text_chars
        self._expression_chars_left = _EXPRESSION_CHARS

    def add_expressions(self, expressions: Iterable[str]) -> str | None:
        """Count expressions before they are computed. Returns what is wrong, as `add` does."""
        self._expression_chars_left -= sum(map(len, expressions))
        if self._expression_chars_left >= 0:
            return None
        return (
            f"with it the expressions of the graph have more than {_EXPRESSION_CHARS} characters, "
            "which is the most that are taken; shorten them, or use fewer"
        )

    def add(self, values: Iterable[object]) -> str | None:
        """Count those of the values that are texts. Returns what is wrong where it is too much."""
        self._left -= sum(len(each) for each in values if isinstance(each, str))
        if self._left >= 0:
            return None
        return f"with it the graph makes more than {self._most} characters"
