"""How a node is declared: its inputs, outputs and body in one place.

The declaration is the source of validation, of `object_info` and of the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TypeAlias

from engine.errors import EngineError
from engine.graph.cost import Estimate, Scalar
from engine.graph.default_shapes import default_estimate

LimitName: TypeAlias = Literal["side", "longest_side", "steps", "batch"]
"""The limit that narrows the range of an integer. "longest_side" narrows only its upper end."""


@dataclass(frozen=True, slots=True)
class Int:
    """A whole number in `min..max`, rounded down to a multiple of `multiple`."""

    default: int
    min: int
    max: int
    step: int = 1
    multiple: int = 1
    limit: LimitName | None = None
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Float:
    """A finite number in `min..max`."""

    default: float
    min: float
    max: float
    step: float = 0.01
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class AnyNumber(Float):
    """The same, where whole numbers and truth values stay what they are, by links too."""


@dataclass(frozen=True, slots=True)
class String:
    """A text."""

    default: str = ""
    multiline: bool = False
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Expression(String):
    """A text that is computed. A graph has a limited length of them in all."""


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false. A number is true unless it is 0."""

    default: bool
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `values`, or the name of a model in `folder`.

    `resolve` turns another spelling into one of `values`. It raises ValueError if it cannot.
    """

    values: tuple[str, ...] = ()
    folder: str | None = None
    resolve: Callable[[str], str] | None = None
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """An output of another node; `type` is the type of that output."""

    type: str
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class InputFile:
    """The name of a file that comes with the job. `Context.input_file` returns its bytes."""

    kind: Literal["image", "latent"] = "image"
    is_text: bool = False
    """Editors ask for it as a text, for it is mostly sent in base64."""
    tooltip: str = ""


Input: TypeAlias = Int | Float | String | Boolean | Choice | Link | InputFile
Body: TypeAlias = Callable[..., Any]
"""`body(context, **inputs)` returns the outputs of the node as a tuple.

The body of an output node returns a list of images or latents. A body that needs the device is a
generator function: it yields `Request`s, receives their results and then returns the outputs.
"""


@dataclass(frozen=True, slots=True)
class NodeType:
    """One kind of node."""

    class_type: str
    body: Body
    inputs: Mapping[str, Input]
    optional: Mapping[str, Input] = field(default_factory=dict)
    """Inputs that a graph may leave out. The body has a default for each."""
    outputs: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    """The names of the outputs. Without them, outputs are called by their types."""
    category: str = ""
    description: str = ""
    display_name: str = ""
    is_output: bool = False
    steps_input: str | None = None
    """The input with the number of sampler steps, the unit of progress. If it is a link, the linked
    node has the number."""
    steps_range: tuple[str, str] | None = None
    """The inputs with the first step and the step to stop before, if a node takes only some."""
    pixel_inputs: tuple[str, ...] = ()
    """The inputs whose product is the number of pixels that the node asks for."""
    check: Callable[[Mapping[str, Any]], object] | None = None
    """Called with the literals if each of them is valid. Raises ValueError if they do not fit."""
    estimate: Callable[[Mapping[str, Any]], Estimate] | None = None
    """What the node costs, from its literals and the shapes of what it is linked to. The name of
    a file is replaced by the shape of what is in it, that of a model is a `ModelName`."""
    is_pure: bool = False
    """Its body only computes numbers, texts or truth values, at once and without its context. Where
    literals alone are given to it, this is done before the graph is accepted."""
    package: str = ""
    """The installed package that it comes from; empty for our own."""
    all_inputs: Mapping[str, Input] = field(init=False, repr=False, compare=False)
    """The required and the optional inputs."""
    file_inputs: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Those of them that are names of input files."""
    model_inputs: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Those of them that are names of models, with their folders."""

    def __post_init__(self) -> None:
        inputs = {**self.inputs, **self.optional}
        files = tuple(name for name, each in inputs.items() if isinstance(each, InputFile))
        object.__setattr__(self, "all_inputs", inputs)
        object.__setattr__(self, "file_inputs", files)
        folders = {n: each.folder for n, each in inputs.items() if isinstance(each, Choice)}
        object.__setattr__(self, "model_inputs", {n: f for n, f in folders.items() if f})

    def has_values(self, links: Iterable[str]) -> bool:
        """Whether one of the linked inputs takes a number, a text or a truth value."""
        return any(not isinstance(self.all_inputs[name], Link) for name in links)

    def expressions(self, inputs: Mapping[str, Any]) -> list[str]:
        """The texts among the inputs that are computed."""
        if not self.is_pure:
            return []
        names = [name for name, each in self.inputs.items() if isinstance(each, Expression)]
        return [inputs[name] for name in names]

    def estimated(self, inputs: Mapping[str, Any]) -> Estimate:
        """What the node costs with these inputs; see `estimate`."""
        if self.is_pure:
            try:
                return Estimate(tuple(map(Scalar, self.body(None, **inputs))))
            except EngineError:  # what it is given is only known to the run, or is its error
                return default_estimate(self.outputs)
        return self.estimate(inputs) if self.estimate else default_estimate(self.outputs)


VALUE_TYPES: Mapping[str, type] = {"STRING": str, "INT": int, "FLOAT": float, "BOOLEAN": bool}
"""The types of outputs that are values, and what they are in Python."""


def is_value(type_name: str, value: object) -> bool:
    """Whether it is a value of that type. True is no number."""
    kind = VALUE_TYPES[type_name]
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def within(declared: Input, scalar: Scalar) -> Any:
    """The value, or the end of its range that it goes beyond."""
    if isinstance(declared, Int | Float) and not isinstance(scalar.value, str):
        return max(declared.min, min(declared.max, scalar.value))
    return scalar.value


def node(class_type: str, **declaration: Any) -> Callable[[Body], NodeType]:
    """Declare the decorated function as the body of a node; its docstring is the description."""

    def declare(body: Body) -> NodeType:
        description = " ".join((body.__doc__ or "").split())
        return NodeType(class_type, body, description=description, **declaration)

    return declare


def gather_nodes(*modules: ModuleType) -> tuple[NodeType, ...]:
    """Every node that the modules declare, in the order of their declarations.

    Raises ValueError if two nodes have one `class_type`. A node that a module imports from another
    is the same node, so it counts once.
    """
    gathered: dict[str, NodeType] = {}
    for module in modules:
        for declared in vars(module).values():
            if not isinstance(declared, NodeType):
                continue
            if gathered.setdefault(declared.class_type, declared) is not declared:
                raise ValueError(f"{module.__name__}: {declared.class_type} is declared twice")
    return tuple(gathered.values())


def type_name(declared: Input) -> str:
    """ComfyUI's name of an input's type."""
    match declared:
        case Int():
            return "INT"
        case AnyNumber():
            return "FLOAT,INT,BOOLEAN"
        case Float():
            return "FLOAT"
        case String():
            return "STRING"
        case Boolean():
            return "BOOLEAN"
        case Choice() | InputFile():
            return "COMBO"
        case Link():
            return declared.type
