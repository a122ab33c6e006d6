"""The format of the files of ComfyUI's editor, as far as a graph depends on it.

It is described in https://docs.comfy.org/specs/workflow_json, versions 0.4 and 1.0. A file may use
subgraphs as nodes. Older files have group nodes instead.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field

_SHOWN = 100
"""The largest number of characters of a text that an error message quotes."""
_LINK_MEMBERS = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")

Id: TypeAlias = Annotated[str, Field(coerce_numbers_to_str=True)]
"""An id, converted to a string as in a graph.

With many numbers of equal hash values as ids, a caller could make sets and dicts slow.
"""


def _by_name(link: Any) -> Any:
    """Return a link as a dict. In version 0.4, a link is a list."""
    return dict(zip(_LINK_MEMBERS, link, strict=False)) if isinstance(link, list) else link


_NONE_IS_EMPTY = BeforeValidator(lambda each: [] if each is None else each)


class Link(BaseModel):
    id: Id
    origin_id: Id
    origin_slot: int


class Slot(BaseModel):
    """An output of a node."""

    type: Any = "*"

    @property
    def type_name(self) -> str:
        """The type. In old files, the type of a choice is the list of its values."""
        if isinstance(self.type, str):
            return self.type
        return "COMBO" if isinstance(self.type, list) else "*"


class Input(Slot):
    name: str
    label: str | None = None
    link: Id | None = None
    widget: Any = None


class Node(BaseModel):
    id: Id
    type: str
    title: str | None = None
    mode: int = 0
    inputs: Annotated[list[Input], FailFast(), _NONE_IS_EMPTY] = Field(default_factory=list)
    outputs: Annotated[list[Slot], FailFast(), _NONE_IS_EMPTY] = Field(default_factory=list)
    properties: dict[str, Any] | None = None
    widgets_values: list[Any] | dict[str, Any] | None = None
    widgets_values_named: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return f"node {self.id[:_SHOWN]} ({self.type[:_SHOWN]})"

    @property
    def values(self) -> list[Any]:
        """The values in the order of the widgets. Empty if the file has them by name only."""
        return self.widgets_values if isinstance(self.widgets_values, list) else []

    @property
    def promoted(self) -> list[tuple[str, str]]:
        """The node id and the name of each promoted widget of a subgraph, if the file has them."""
        listed = (self.properties or {}).get("proxyWidgets")
        entries = listed if isinstance(listed, list) else []
        return [(str(e[0]), str(e[1])) for e in entries if isinstance(e, list) and len(e) > 1]


class Graph(BaseModel):
    nodes: Annotated[list[Node], FailFast()]
    links: Annotated[list[Annotated[Link, BeforeValidator(_by_name)]], FailFast()]


class SubgraphSlot(BaseModel):
    """An input or an output of a subgraph."""

    model_config = ConfigDict(validate_by_alias=True, validate_by_name=True)
    name: str = ""
    link_ids: list[Id] = Field(default_factory=list, validation_alias="linkIds")


class Subgraph(Graph):
    id: Id
    inputs: list[SubgraphSlot] = Field(default_factory=list)
    outputs: list[SubgraphSlot] = Field(default_factory=list)
    definitions: Definitions | None = None


class Definitions(BaseModel):
    subgraphs: list[Subgraph] = Field(default_factory=list)


class GroupMember(Node):
    id: Id = ""


class Group(BaseModel):
    """The content of a group node. Its links state the indexes of nodes instead of ids."""

    nodes: Annotated[list[GroupMember], FailFast()]
    links: Annotated[list[list[Any]], FailFast()] = Field(default_factory=list)
    external: Annotated[list[list[Any]], FailFast()] = Field(default_factory=list)
    config: dict[str, Any] | None = None


class Extra(BaseModel):
    groups: dict[str, Group] | None = Field(default=None, alias="groupNodes")


class File(Graph):
    definitions: Definitions | None = None
    extra: Extra | None = None
