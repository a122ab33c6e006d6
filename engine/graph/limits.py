"""Limits on the size of the requests that the service accepts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.errors import TooLarge
from engine.graph.declarations import Int

MAX_SCHEDULE_SIGMAS = 1_000_000
"""The length of the longest schedule that is computed. With a low denoise, only the end of the
schedule is used."""
_TEXT_BUDGET = 16
"""The most characters that the nodes of a graph make, as a multiple of `max_text_chars`."""
_EXPRESSION_CHARS = 32_768
"""The largest number of characters in all expressions of a graph. Each character costs 2 µs or
more, in HTTP replicas and in every other process that checks the graph."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest values that the service accepts. They narrow the ranges that nodes declare."""

    max_nodes: int = 1000
    max_node_id_chars: int = 128
    min_side: int = 16
    max_side: int = 4096
    max_steps: int = 10_000
    max_batch: int = 16
    max_text_chars: int = 32_768
    max_request_chars: int = 131_072
    """The number of characters of all texts of a graph together."""
    max_pixels: int = 2**24
    """The product of width, height and batch size."""
    max_cost: float = 2000.0
    """The work of a job in megapixel-steps. In this field and in the fields below, 0 means no
    limit; see `cost.Cost`."""
    max_live_bytes: int = 2 * 2**30
    """The size of the node outputs of a job that are alive at the same time."""
    max_conditioning_rows: int = 64
    """The number of rows of conditioning of one sampler."""
    max_tokens: int = 65_536
    """The number of tokens of one conditioning."""
    max_merged_models: int = 4
    """The number of models with merged LoRAs that are alive at once."""
    max_outputs: int = 256
    """The number of images and latents that a job saves."""

    def narrowed(self, max_cost: float) -> Limits:
        """Return the limits with the lower of both values of `max_cost`, where 0 means no limit."""
        return replace(self, max_cost=min(self.max_cost or max_cost, max_cost or self.max_cost))

    def bounds(self, declared: Int) -> tuple[int, int]:
        """Return the lowest and the highest allowed value of an integer input."""
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
                f"{self.max_batch} images and {self.max_pixels} pixels are allowed at once."
            )


class TextBudget:
    """Limits the text that the nodes of a graph make, and the length of their expressions.

    Each node may double its text, so without a limit a few nodes could make a huge text.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = self._left = _TEXT_BUDGET * limits.max_text_chars
        self._expression_chars_left = _EXPRESSION_CHARS

    def add_expressions(self, expressions: Iterable[str]) -> str | None:
        """Count expressions before they are computed. Returns an error message above the limit."""
        self._expression_chars_left -= sum(map(len, expressions))
        if self._expression_chars_left >= 0:
            return None
        return (
            f"with this node the expressions of the graph have more than {_EXPRESSION_CHARS} "
            "characters, which is the limit; shorten them, or use fewer"
        )

    def add(self, values: Iterable[object]) -> str | None:
        """Count the texts among the values. Returns an error message above the limit."""
        self._left -= sum(len(each) for each in values if isinstance(each, str))
        if self._left >= 0:
            return None
        return f"with this node the graph makes more than {self._most} characters"
