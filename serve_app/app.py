"""The Serve application. `serve run serve_app.app:build` or a RayService starts the HTTP API and
the roles. NATS must already run.

The application has two deployments: `Api`, the HTTP ingress, and `Roles`, which holds the actors of
the roles. They are separate, because Serve does not replace HTTP replicas while an actor of the
same deployment fails to start.
"""

from __future__ import annotations

import logging
import os
import pickle
from base64 import b64encode
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import DeploymentActorConfig

from actors.roles import ROLES
from actors.scheduler.worker_reaper import CPU_NODE
from serve_app.assembly import build_asgi
from serve_app.endpoints.declared import read_declarations
from serve_app.middleware import RequestIdFilter
from serve_app.replica_port import limit_connections, listen_on_node_address
from serve_app.role_holder import Roles
from serve_app.setup_warnings import variable_warnings
from settings.http import MAX_REPLICA_REQUESTS
from settings.settings import Settings
from telemetry.logs import set_up_logging

logger = logging.getLogger(__name__)

_DEFAULT_REPLICAS = 2
_RETRIES = 1_000_000
"""The number of retries of a replica's constructor. Serve has no value for an unlimited number."""


def build(args: dict[str, Any]) -> Application:
    """Build the application from the `DARKROOM_*` settings, which arguments of Serve override."""
    return build_with(Settings.load(**args))


def build_with(settings: Settings) -> Application:
    """Build the application. Raises EndpointsFileInvalid, and ValueError if there is no secret."""
    settings = _with_replicas(settings.with_absolute_folders())
    if (path := settings.default_endpoint.file) is not None:
        read_declarations(path)
    settings.stores.secret_bytes  # noqa: B018 - a missing secret must fail here, not in a replica
    roles = serve.deployment(
        name="Roles",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0, "resources": CPU_NODE},
        deployment_actors=[_role(name, main, settings) for name, main in ROLES.items()],
        max_constructor_retry_count=_RETRIES,
    )(Roles)
    api = serve.deployment(
        name="Api",
        num_replicas=settings.http.replicas,
        max_ongoing_requests=MAX_REPLICA_REQUESTS,
        ray_actor_options={"num_cpus": 0, "resources": CPU_NODE},
        max_constructor_retry_count=_RETRIES,
        graceful_shutdown_timeout_s=5,
        # Darkroom's own log lines (`DARKROOM_LOG_REQUESTS`) have more details.
        logging_config={"enable_access_log": False},
    )(serve.ingress(lambda: build_replica(settings))())
    application: Application = api.bind(roles.bind())
    return application


def _with_replicas(settings: Settings) -> Settings:
    """Set the number of replicas, from which each replica computes its part of a rate limit."""
    if settings.http.replicas is not None:
        return settings
    replicas = min(_DEFAULT_REPLICAS, os.cpu_count() or 1)
    http = settings.http.model_copy(update={"replicas": replicas})
    return settings.model_copy(update={"http": http})


def _role(name: str, main: str, settings: Settings) -> DeploymentActorConfig:
    pickled = b64encode(pickle.dumps(settings)).decode()
    return DeploymentActorConfig(
        name=name,
        actor_class="actors.roles.process:RoleActor",
        init_kwargs={"main": main, "settings": pickled},
        actor_options={"num_cpus": 0, "resources": CPU_NODE},
    )


def build_replica(settings: Settings) -> FastAPI:
    """Set up the process of a replica, and build its ASGI application."""
    set_up_logging(log_format=settings.telemetry.log_format, filters=[RequestIdFilter()])
    listen_on_node_address()
    limit_connections()
    for warning in variable_warnings(Settings.unknown_variables(os.environ)):
        logger.warning(
            "an environment variable is not a setting",
            extra={"action": "start", "warning": warning},
        )
    return build_asgi(settings, is_in_serve=True)
