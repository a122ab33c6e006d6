"""The definition of a named workflow: a graph with typed inputs and named outputs.

A version of a workflow stores one definition. `graph_with` puts the values of a call into the
graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from engine.interface import FieldError, GraphInvalid, ParametersInvalid
from events.ids import ENDPOINT_ID
from serve_app.key_schemas import Members

InputType: TypeAlias = Literal["string", "integer", "number", "boolean", "image", "file"]
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
"""The pattern of the name of a workflow."""
_INPUT_NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
MAX_INPUTS = 100
"""The largest number of inputs of a workflow."""
_MAX_TEXT_CHARS = 2000
_MAX_SHOWN_CHOICES = 20

InputName = Annotated[str, Field(pattern=_INPUT_NAME)]
NodeId = Annotated[str, Field(min_length=1, max_length=255)]
Description = Annotated[str, Field(max_length=_MAX_TEXT_CHARS)]
Scalar: TypeAlias = str | bool | int | float


def _finite(value: Scalar) -> Scalar:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Number = Annotated[int | float, AfterValidator(_finite)]
Value = Annotated[Scalar, Field(union_mode="smart"), AfterValidator(_finite)]


class InputDefinition(Members):
    """An input of a named workflow: where its value goes, and which values are allowed."""

    node: NodeId = Field(description="The id of the node", examples=["6"])
    input: Annotated[str, Field(min_length=1, max_length=255)] = Field(
        description="The input of the node", examples=["text"]
    )
    type: InputType | None = Field(
        default=None,
        description="`image` and `file` take the name of an upload, a data URL or an https URL. "
        "Absent: the type that the node declares",
    )
    default: Value | None = Field(
        default=None,
        description="The value of a call that does not give this input. Absent: the value in the "
        "graph",
    )
    minimum: Number | None = None
    maximum: Number | None = None
    choices: Annotated[tuple[Value, ...], Field(min_length=1, max_length=1000)] | None = None
    description: Description = ""
    required: bool = Field(default=False, description="Whether each call must give this input")

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.type is None:
            return self  # `proposals.with_types` validates the input again with its type.
        if (self.minimum, self.maximum) != (None, None) and self.type not in ("integer", "number"):
            raise ValueError("only an integer or a number may have a minimum or a maximum")
        if self.required and self.default is not None:
            raise ValueError("a required input may not have a default")
        if self.default is not None and (wrong := self._error_of_type(self.default)):
            raise ValueError(f"{str(self.default)[:40]!r} {wrong}")
        for value in self.choices or ():
            # The default is valid in any case.
            is_default = self.default is not None and value == self.default
            wrong = self._error_of_type(value) or (None if is_default else self._outside(value))
            if wrong:
                raise ValueError(f"{str(value)[:40]!r} {wrong}")
        return self

    def error_of(self, value: Any, *, allowed: Any = None) -> str | None:
        """Return why this value is not valid, or None if it is valid.

        A value that equals `allowed`, such as the default, may lie outside the choices and bounds.
        """
        if wrong := self._error_of_type(value):
            return wrong
        if allowed is not None and value == allowed:
            return None
        if self.choices is not None and value not in self.choices:
            shown = ", ".join(str(each)[:80] for each in self.choices[:_MAX_SHOWN_CHOICES])
            return f"must be one of the choices; there are: {shown}"
        return self._outside(value)

    def _error_of_type(self, value: Any) -> str | None:
        assert self.type is not None
        match self.type:
            case "boolean":
                is_right = isinstance(value, bool)
            case "integer":
                is_right = is_number(value) and (isinstance(value, int) or value.is_integer())
            case "number":
                is_right = is_number(value)
            case _:
                is_right = isinstance(value, str)
        return None if is_right else f"must be {_EXPECTED[self.type]}"

    def _outside(self, value: Any) -> str | None:
        if self.minimum is not None and value < self.minimum:
            return f"must be at least {self.minimum}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum}"
        return None

    def json_schema(self, current: Any) -> dict[str, Any]:
        """Return the JSON Schema of the input. `current` is the value that the graph has now."""
        assert self.type is not None
        kind = "string" if self.type in ("image", "file") else self.type
        default = None if self.required else current if self.default is None else self.default
        schema = {
            "type": kind,
            "description": self.description or _DEFAULT_DESCRIPTIONS.get(self.type),
            "default": default,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "enum": None if self.choices is None else list(self.choices),
            "format": self.type if self.type in ("image", "file") else None,
        }
        return {name: each for name, each in schema.items() if each is not None}


_EXPECTED = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "image": "a text: the name of an upload, a data URL or an https URL",
    "file": "a text: the name of an upload, a data URL or an https URL",
}
_DEFAULT_DESCRIPTIONS = {
    "image": "An image: the name of an upload, a data URL or an https URL",
    "file": "A file: the name of an upload, a data URL or an https URL",
}


def is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


class Definition(BaseModel):
    """The content of a version of a named workflow."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt: dict[str, Any]
    inputs: dict[str, InputDefinition]
    outputs: dict[str, str]
    endpoint: str
    description: str = ""

    def json_schema(self, title: str) -> dict[str, Any]:
        """Return the JSON Schema of the inputs of a call."""
        inputs = self.inputs.items()
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": title,
            "description": self.description,
            "type": "object",
            "properties": {
                name: each.json_schema(value_in(self.prompt, each)) for name, each in inputs
            },
            "required": [name for name, each in inputs if each.required],
            "additionalProperties": False,
        }

    def graph_with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the graph with the values of a call.

        Raises ParametersInvalid if an input is unknown, missing or not valid.
        """
        errors = []
        for name in given.keys() - self.inputs.keys():
            known = ", ".join(self.inputs) or "none"
            message = f"the workflow has no such input; there are: {known}"
            errors.append(FieldError("unknown_input", message, f"inputs.{name[:80]}"))
        prompt = {id: {**node, "inputs": {**node["inputs"]}} for id, node in self.prompt.items()}
        for name, each in self.inputs.items():
            value = given.get(name)
            if value is None:
                if each.required:
                    message = "is required"
                    errors.append(FieldError("required_input_missing", message, f"inputs.{name}"))
                value = each.default
            elif wrong := each.error_of(value, allowed=each.default):
                errors.append(FieldError("value_error", wrong, f"inputs.{name}"))
                value = None
            if value is not None:
                value = int(value) if each.type == "integer" else value
                prompt[each.node]["inputs"][each.input] = value
        if errors:
            raise ParametersInvalid(tuple(sorted(errors, key=lambda error: error.field)))
        return prompt

    def with_input_names(self, error: GraphInvalid) -> GraphInvalid | ParametersInvalid:
        """Return an error about the graph with the names of inputs in place of node ids.

        If a part of the error is not about an input, the error is returned unchanged.
        """
        names = {(each.node, each.input): name for name, each in self.inputs.items()}
        fields = []
        for node, found in error.node_errors.items():
            for each in found["errors"]:
                name = names.get((node, each.get("extra_info", {}).get("input_name")))
                if name is None:
                    return error
                text = each["details"] or each["message"]
                fields.append(FieldError(each["type"], text, f"inputs.{name}"))
        return ParametersInvalid(tuple(fields)) if fields else error


def value_in(prompt: Mapping[str, Any], definition: InputDefinition) -> Any:
    """Return the value in the graph that this input replaces, or None if the node has none."""
    return prompt[definition.node]["inputs"].get(definition.input)


def require_replaceable(prompt: Mapping[str, Any], inputs: Mapping[str, InputDefinition]) -> None:
    """Raise ParametersInvalid if the node of an input is missing, or has a link as the value, or if
    another input sets the same value.
    """
    errors = []
    places: dict[tuple[str, str], str] = {}
    for name, each in inputs.items():
        node = prompt.get(each.node)
        first = places.setdefault((each.node, each.input), name)
        if first != name:
            message = f"the input {first!r} already sets this value of the graph"
        elif node is None:
            message = f"the graph has no node {each.node[:80]!r}"
        elif is_link(node["inputs"].get(each.input)):
            place = f"the input {each.input[:80]!r} of node {each.node[:80]!r}"
            message = f"{place} is linked to another node. Choose an input that has a value"
        else:
            continue
        errors.append(FieldError("unknown_node", message, f"inputs.{name}"))
    if errors:
        raise ParametersInvalid(tuple(errors))


def is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


WorkflowName = Annotated[
    str, Field(pattern=NAME, description="The name of the workflow", examples=["portrait"])
]
Inputs = Annotated[
    dict[InputName, InputDefinition],
    Field(
        max_length=MAX_INPUTS,
        description="The inputs by name. Absent in a new workflow: proposed from the graph. Absent "
        "in a change: those of the newest version",
    ),
]
Outputs = Annotated[
    dict[InputName, NodeId],
    Field(
        min_length=1,
        max_length=MAX_INPUTS,
        description="The ids of the output nodes whose results a call returns, by a name. Other "
        "output nodes do not run. Absent: all output nodes of a new graph, and in a change without "
        "a graph those of the newest version",
    ),
]
EndpointName = Annotated[
    str, Field(pattern=ENDPOINT_ID, description="The endpoint that runs the workflow")
]


class NewWorkflow(Members):
    """The body that stores a workflow."""

    name: WorkflowName
    prompt: Any = Field(
        description="A graph in ComfyUI's API format, a file of ComfyUI's editor, or an image that "
        "contains one of them, as a data URL or base64"
    )
    inputs: Inputs | None = None
    outputs: Outputs | None = None
    endpoint: EndpointName = "default"
    description: Description = ""
    shared: bool = Field(
        default=False,
        description="Whether the keys of all owners may run the workflow. Only administrators may "
        "share",
    )


class WorkflowChanges(Members):
    """The body that changes a workflow. Any member except `marked` makes a new version.

    Absent members stay as they are, except that the outputs of a new graph are proposed again.
    """

    prompt: Any = None
    inputs: Inputs | None = None
    outputs: Outputs | None = None
    endpoint: EndpointName | None = None
    description: Description | None = None
    marked: int | None = Field(
        default=None,
        ge=1,
        description="The version that the name without a version means. null: the newest version",
    )


class WorkflowRun(Members):
    """The body that runs a workflow."""

    inputs: dict[str, Any] = Field(
        default_factory=dict,
        max_length=MAX_INPUTS,
        description="The values of the inputs by name",
    )
    image_put_urls: Any = None
    extra_data: Any = None
