"""Declares nodes: the inputs, the outputs and the body of a node are in one place.

Validation, `object_info` and the documentation use the declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TypeAlias

from engine.errors import EngineError
from engine.graph.cost import Estimate, Scalar, default_estimate

LimitName: TypeAlias = Literal["side", "longest_side", "steps", "batch"]
"""The limit that narrows the range of an integer. "longest_side" narrows only the maximum."""


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
    default: float
    min: float
    max: float
    step: float = 0.01
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class AnyNumber(Float):
    """A finite number that keeps its type: integers and truth values do not become floats."""


@dataclass(frozen=True, slots=True)
class AnyValue:
    """A number, a text or a truth value, which keeps its type."""

    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class String:
    default: str = ""
    multiline: bool = False
    tooltip: str = ""
    dynamic_prompts: bool = False
    """Whether ComfyUI's editor takes one option of a choice in the text, such as `{red|blue}`."""


@dataclass(frozen=True, slots=True)
class Expression(String):
    """A text that is evaluated. The length of all expressions of a graph together is limited."""


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false. A number is true unless it is 0."""

    default: bool
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `values`, or the name of a model in `folder`.

    `resolve` converts another spelling into one of `values`. It raises ValueError for an unknown
    spelling. The default is the first value unless `default` names another one.
    """

    values: tuple[str, ...] = ()
    folder: str | None = None
    resolve: Callable[[str], str] | None = None
    tooltip: str = ""
    default: str | None = None


@dataclass(frozen=True, slots=True)
class DynamicChoice(Choice):
    """A choice whose values bring further inputs, called parts (ComfyUI's dynamic combo).

    The width of the choice `resize_type` is the input `resize_type.width`. A part that is not given
    has its default. `options` has the parts of each value, by the name after the dot.
    """

    options: Mapping[str, Mapping[str, Input]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.options))


@dataclass(frozen=True, slots=True)
class Link:
    """An output of another node. `type` is its type, or several with commas, or * for any type."""

    type: str
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class InputFile:
    """The name of a file that comes with the job. `Context.input_file` returns its bytes."""

    kind: Literal["image", "latent"] = "image"
    is_text: bool = False
    """Whether editors show the input as a text field, because most callers send base64."""
    tooltip: str = ""


Input: TypeAlias = Int | Float | AnyValue | String | Boolean | Choice | Link | InputFile
Body: TypeAlias = Callable[..., Any]
"""`body(context, **inputs)` returns the outputs of the node as a tuple.

The body of an output node returns a list of images, latents or texts. A body that needs the device
is a generator function: it yields `Request`s, receives their results and then returns the outputs.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a `DynamicChoice`."""

    choice: str
    """The name of the choice."""
    by_value: dict[str, Input]
    """The declaration of the part for each value of the choice that has it."""


@dataclass(frozen=True, slots=True)
class NodeType:
    class_type: str
    body: Body
    inputs: Mapping[str, Input]
    optional: Mapping[str, Input] = field(default_factory=dict)
    """Inputs that a graph may leave out. The body has a default for each input."""
    outputs: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    """The names of the outputs. By default, the name of an output is its type."""
    type_follows: str = ""
    """The input whose linked type is the type of the only output. `outputs` then lists the possible
    types with commas.
    """
    passed_input: str = ""
    """The input that a link to this output node gets. ComfyUI's nodes that save or preview have it
    as their output.
    """
    category: str = ""
    description: str = ""
    display_name: str = ""
    is_output: bool = False
    steps_input: str | None = None
    """The input with the number of sampler steps. If it is a link, the linked node has them."""
    steps_range: tuple[str, str] | None = None
    """The inputs with the first step and with the step to stop at, if the node has them."""
    pixel_inputs: tuple[str, ...] = ()
    """The inputs whose product is the number of pixels that the node makes."""
    check: Callable[[Mapping[str, Any]], object] | None = None
    """Raises ValueError if literals do not fit together. Called when each literal is valid."""
    estimate: Callable[[Mapping[str, Any]], Estimate] | None = None
    """Computes the cost of the node from its literals and the shapes of its linked inputs. The name
    of a file is replaced with the shape of the content, and the name of a model with a `ModelName`.
    """
    is_pure: bool = False
    """Whether the body only computes numbers, texts or truth values, without the context. If all
    inputs of such a node are literals, its body is called before the graph is accepted."""
    package: str = ""
    """The installed package that declares the node; empty for the nodes of Darkroom."""
    all_inputs: Mapping[str, Input] = field(init=False, repr=False, compare=False)
    """All inputs, with each part of a `DynamicChoice` after it."""
    parts: Mapping[str, Part] = field(init=False, repr=False, compare=False)
    file_inputs: tuple[str, ...] = field(init=False, repr=False, compare=False)
    model_inputs: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The folder of models for each input that takes the name of a model."""

    def __post_init__(self) -> None:
        inputs: dict[str, Input] = {}
        parts: dict[str, Part] = {}
        for name, declared in {**self.inputs, **self.optional}.items():
            inputs[name] = declared
            for value, own in getattr(declared, "options", {}).items():
                for end, each in own.items():
                    part = parts.setdefault(f"{name}.{end}", Part(name, {}))
                    part.by_value[value] = inputs[f"{name}.{end}"] = each
        object.__setattr__(self, "parts", parts)
        files = tuple(name for name, each in inputs.items() if isinstance(each, InputFile))
        object.__setattr__(self, "all_inputs", inputs)
        object.__setattr__(self, "file_inputs", files)
        folders = {n: each.folder for n, each in inputs.items() if isinstance(each, Choice)}
        object.__setattr__(self, "model_inputs", {n: f for n, f in folders.items() if f})

    def chosen_input(self, name: str, literals: Mapping[str, Any]) -> Input | None:
        """Return an input, or None if it is a part of a value that the literals do not choose."""
        part = self.parts.get(name)
        if part is None:
            return self.all_inputs[name]
        return part.by_value.get(literals.get(part.choice, ""))

    def has_values(self, links: Iterable[str]) -> bool:
        """Whether one of the linked inputs takes a number, a text or a truth value."""
        return any(not isinstance(self.all_inputs[name], Link) for name in links)

    def expressions(self, inputs: Mapping[str, Any]) -> list[str]:
        """Return the inputs of a pure node that are expressions."""
        if not self.is_pure:
            return []
        names = [name for name, each in self.inputs.items() if isinstance(each, Expression)]
        return [inputs[name] for name in names]

    def estimated(self, inputs: Mapping[str, Any]) -> Estimate:
        if self.is_pure:
            try:
                return Estimate(tuple(map(Scalar, self.body(None, **inputs))))
            # The error is not raised here, because the inputs may be estimates. With the same
            # inputs, the run raises the error.
            except EngineError:
                return default_estimate(self.outputs)
        return self.estimate(inputs) if self.estimate else default_estimate(self.outputs)


VALUE_TYPES: Mapping[str, type] = {"STRING": str, "INT": int, "FLOAT": float, "BOOLEAN": bool}
"""The Python type of each type of output that is a value."""


def is_value(type_name: str, value: object) -> bool:
    """Whether `value` is of the type `type_name`. A truth value is not a number here."""
    kind = VALUE_TYPES[type_name]
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def clamped(declared: Input, scalar: Scalar) -> Any:
    """Return the value of `scalar`, limited to the range of the input."""
    if isinstance(declared, Int | Float) and not isinstance(scalar.value, str):
        return max(declared.min, min(declared.max, scalar.value))
    return scalar.value


def node(class_type: str, **declaration: Any) -> Callable[[Body], NodeType]:
    """Declare the decorated function as the body of a node; its docstring is the description."""

    def declare(body: Body) -> NodeType:
        description = " ".join((body.__doc__ or "").split())
        return NodeType(class_type, body, description=description, **declaration)

    return declare


def default_of(declared: Input) -> Any:
    """Return the value of an input that is not given, or None if it has no default."""
    if isinstance(declared, Choice):
        return declared.default or next(iter(declared.values), None)
    return getattr(declared, "default", None)


def gather_nodes(*modules: ModuleType) -> tuple[NodeType, ...]:
    """Return every node that the modules declare, in the order of the declarations.

    A node that one module imports from another module counts once. Raises ValueError if two nodes
    have the same `class_type`.
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
    """Return ComfyUI's name of an input's type."""
    match declared:
        case Int():
            return "INT"
        case AnyNumber():
            return "FLOAT,INT,BOOLEAN"
        case Float():
            return "FLOAT"
        case AnyValue():
            return "INT,FLOAT,STRING,BOOLEAN"
        case String():
            return "STRING"
        case Boolean():
            return "BOOLEAN"
        case DynamicChoice():
            return "COMFY_DYNAMICCOMBO_V3"
        case Choice() | InputFile():
            return "COMBO"
        case Link():
            return declared.type
