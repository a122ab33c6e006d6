"""How a worker runs a job."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class WorkerSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    max_attempts: PositiveInt = 3
    """How many attempts may fail by a job's own doing before it is given up."""
    max_attempts_total: PositiveInt = 100
    """How many attempts at a job may fail in which something was done for it, whatever ended them.
    Each job that breaks the engine takes attempts of its neighbours, so this is a large number."""
    exclusive_timeout_s: PositiveFloat = 600.0
    """How long a job that may have broken an engine has one for itself; then others run beside it
    again, and what breaks off is not charged to it."""
    lease_s: PositiveFloat = 30.0
    """How long the actor of a job may be silent before the job goes to another one."""
    lease_renew_s: PositiveFloat = 5.0
    """How often the actor of a job renews its lease."""
    step_timeout_s: PositiveFloat = 120.0
    """How long an engine may take for one device call, or in one node, before it is ended."""
    model_load_timeout_s: PositiveFloat = 600.0
    """How long an engine may take to load a model, or for the first call of a kind and a size
    (kernels may be compiled for it), before it is ended."""
    engine_answer_timeout_s: PositiveFloat = 30.0
    """How long an engine may not answer, beyond the time that its present work may take, before a
    job that runs on it kills it, or the dispatcher one that no job runs on."""
    standby_engine: bool | None = None
    """Whether each worker keeps a second process that has torch loaded and takes the device at once
    when the engine dies. It takes some 400 MB and uses no GPU meanwhile; if unset, it is kept where
    the machine has 8 GiB of memory or more. On Linux alone."""
