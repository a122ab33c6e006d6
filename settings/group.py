"""Group: the base class of groups of settings, which are read from the environment."""

from __future__ import annotations

from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)


class Group(BaseSettings):
    """Times are in seconds (`_s`), sizes in bytes (`_bytes`).

    The environment variable of a field is its alias, or else `env_prefix` and the name of the
    field.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        use_attribute_docstrings=True,
        validate_by_name=True,
        loc_by_alias=False,
        hide_input_in_errors=True,  # Errors must not show the input, because it may be a password.
    )

    @classmethod
    def variables(cls) -> dict[str, str]:
        """Return the field names by environment variable."""
        prefix = cls.model_config["env_prefix"]
        return {
            str(field.validation_alias or f"{prefix}{name.upper()}"): name
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def settings_customise_sources(  # noqa: PLR0917 - pydantic-settings hands them over
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # A field with an alias must not also be read from a variable with the field's own name.
        env_settings.config = {**settings_cls.model_config, "validate_by_name": False}
        return init_settings, env_settings, dotenv_settings, file_secret_settings
