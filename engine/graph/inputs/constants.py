"""Values that a graph's literals alone tell: they are computed before it is accepted.

So a number that comes by a link is held to the same range and the same limits as one that stands
in its place, and costs as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import EngineError
from engine.graph.declarations import NodeType
from engine.graph.graph import Source
from engine.graph.graph_errors import InputError
from engine.graph.limits import Limits, MadeTexts


class Constants:
    """The outputs of the pure nodes of one prompt, as far as they are known."""

    def __init__(self, limits: Limits) -> None:
        self._outputs: dict[str, tuple[Any, ...]] = {}
        self._most_chars = limits.max_text_chars
        self._texts = MadeTexts(limits)

    def has(self, source: Source) -> bool:
        """Whether the value of that output is known."""
        return source.node_id in self._outputs

    def value(self, source: Source) -> Any:
        """The value of that output."""
        return self._outputs[source.node_id][source.output]

    def add(
        self, node_id: str, declared: NodeType, literals: Mapping[str, Any]
    ) -> InputError | None:
        """Compute a pure node, all of whose inputs are literals. Returns what is wrong with it."""
        if problem := self._texts.add_expressions(declared.expressions(literals)):
            return InputError("value_bigger_than_max", "The expressions are too long", problem)
        try:
            outputs = declared.body(None, **literals)
        except EngineError as error:
            return InputError("custom_validation_failed", "A node refuses its inputs", str(error))
        chars = sum(len(each) for each in outputs if isinstance(each, str))
        problem = self._texts.add(outputs)
        if chars > self._most_chars:
            details = f"it makes {chars} characters, at most {self._most_chars} are taken"
            return InputError("value_bigger_than_max", "A text is too long", details)
        if problem:
            return InputError("value_bigger_than_max", "The texts are too long", problem)
        self._outputs[node_id] = outputs
        return None
