"""Settings: all groups together. Entry points read this class, and pass on single groups."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, MutableMapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from settings.callbacks import CallbackSettings
from settings.comfyui import ComfyUISettings
from settings.dispatch import DispatchSettings, RaySettings
from settings.endpoint import EndpointSettings
from settings.engine import EngineSettings
from settings.fields import error_text
from settings.graph import GraphSettings
from settings.group import Group
from settings.http import HttpSettings, ProtocolSettings
from settings.keys import KeySettings, OwnerSettings
from settings.log import LogSettings, TelemetrySettings
from settings.retention import RetentionSettings
from settings.stores import StoreSettings
from settings.workers import WorkerSettings

G = TypeVar("G", bound=Group)


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True)

    http: HttpSettings
    protocols: ProtocolSettings
    stores: StoreSettings
    log: LogSettings
    keys: KeySettings
    owners: OwnerSettings
    graph: GraphSettings
    default_endpoint: EndpointSettings
    comfyui: ComfyUISettings
    workers: WorkerSettings
    engine: EngineSettings
    dispatch: DispatchSettings
    callbacks: CallbackSettings
    retention: RetentionSettings
    ray: RaySettings
    telemetry: TelemetrySettings

    @classmethod
    def groups(cls) -> dict[str, type[Group]]:
        """Return the class of each group, by the name of its field."""
        types = get_type_hints(cls)
        return {name: types[name] for name in cls.model_fields}

    @classmethod
    def variables(cls) -> set[str]:
        return {variable for group in cls.groups().values() for variable in group.variables()}

    @classmethod
    def secret_variables(cls) -> set[str]:
        return {
            variable
            for group in cls.groups().values()
            for variable, field in group.variables().items()
            if SecretStr in get_args(group.model_fields[field].annotation)
        }

    @classmethod
    def unknown_variables(cls, environment: Iterable[str]) -> dict[str, str | None]:
        """Return the most similar setting, or None, for each `DARKROOM_*` variable that is no
        setting.

        Variables that Kubernetes sets for its services are left out.
        """
        known = {_argument(each): each for each in cls.variables() | _OTHER_VARIABLES}
        unknown = {
            each: _argument(each)
            for each in environment
            if each.upper().startswith("DARKROOM_")
            and not each.startswith("DARKROOM_TEST_")
            and not _KUBERNETES.fullmatch(each)
        }
        return {
            variable: next((known[n] for n in get_close_matches(name, known, cutoff=0.7)), None)
            for variable, name in unknown.items()
            if name not in known
        }

    @classmethod
    def wrong_values(cls, error: ValidationError) -> list[str]:
        """Return a line for each wrong value of `load`: variable, value, and the expected form."""
        secret = cls.secret_variables()
        lines = []
        for each in error.errors():
            name, *place = each["loc"]
            variable = f"DARKROOM_{name}".upper()
            value = "a value that is not shown" if variable in secret else _shown(each["input"])
            item = f", item {int(place[0]) + 1}" if place else ""
            lines.append(f"{variable}{item} is {value}: {each['msg']}")
        return lines

    def with_absolute_folders(self) -> Settings:
        """Return the settings with absolute paths, for processes with another working directory."""
        return self.model_copy(
            update={
                "stores": _with_absolute(self.stores, "data_dir", "models_dir"),
                "default_endpoint": _with_absolute(self.default_endpoint, "file"),
                "comfyui": _with_absolute(self.comfyui, "dir", "python"),
            }
        )

    @classmethod
    def load(cls, /, **arguments: Any) -> Settings:
        """Read every group from the environment. Arguments have precedence over variables.

        An argument is named like its variable, in any case and without `DARKROOM_`. An unknown
        argument is ignored. Raises one ValidationError with all wrong values, which are named like
        arguments.
        """
        groups: dict[str, Group] = {}
        wrong: list[InitErrorDetails] = []
        values = {name.lower(): value for name, value in arguments.items()}
        for name, group in cls.groups().items():
            fields = {_argument(name): field for name, field in group.variables().items()}
            given = {fields[each]: value for each, value in values.items() if each in fields}
            try:
                groups[name] = group(**given)
            except ValidationError as error:
                wrong += _by_argument(error, {field: each for each, field in fields.items()})
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong, hide_input=True)
        settings = cls.model_validate(groups)
        if settings.comfyui.dir is None or "models_dir" in settings.stores.model_fields_set:
            return settings
        models = {"models_dir": settings.comfyui.dir / "models"}
        return settings.model_copy(update={"stores": settings.stores.model_copy(update=models)})


_OTHER_VARIABLES = {"DARKROOM_URL", "DARKROOM_API_KEY"}
"""Variables that the command line reads beside settings."""
_KUBERNETES = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)")
_SHOWN_CHARS = 100


def forget_secrets(environment: MutableMapping[str, str]) -> None:
    """Remove the variables that contain secrets, so that child processes do not inherit them."""
    secret = Settings.secret_variables()
    for variable in [each for each in environment if each.upper() in secret]:
        del environment[variable]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _with_absolute(group: G, *names: str) -> G:
    """Return the group with absolute paths in these fields."""
    paths = {name: getattr(group, name) for name in names}
    return group.model_copy(update={name: path and path.absolute() for name, path in paths.items()})


def _argument(variable: str) -> str:
    return variable.lower().removeprefix("darkroom_")


def _by_argument(
    error: ValidationError, arguments: Mapping[str, str]
) -> Generator[InitErrorDetails]:
    """Yield the errors of a group, which name arguments instead of fields."""
    for detail in error.errors():
        field, *place = detail["loc"]
        yield InitErrorDetails(
            # The messages of pydantic are replaced, because they are for programmers.
            type=PydanticCustomError(detail["type"], error_text(detail)),
            loc=(arguments[str(field)], *place),
            input=detail["input"],
        )
