"""The Serve application. `serve run serve_app.app:build` or a RayService starts the whole system.

The application has two deployments: `Api`, the HTTP ingress, and `Roles`, which holds the actors of
the roles. They are separate, because Serve does not replace HTTP replicas while an actor of the
same deployment fails to start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import DeploymentActorConfig

from actors.callbacks.guarded_backend import Proxy, Resolver
from actors.callbacks.keys import SigningSecrets
from actors.callbacks.own_addresses import address_rule
from actors.callbacks.sample import SampleCallback
from actors.callbacks.sender import Sender
from actors.connections import Connections, image_urls, open_connections, open_images
from actors.database import open_database, open_history, open_removal
from actors.fetcher import Fetcher
from actors.roles import ROLES
from actors.scheduler.worker_reaper import CPU_NODE
from actors.worker.config import default_endpoint
from engine.interface import Catalogue, ModelsFolder, installed_nodes
from events.bus.bus import Bus
from events.bus.health import JetStreamHealth
from events.bus.jetstream_log import log_contents
from events.bus.progress import ProgressBoard
from events.bus.request_reply import answer_metrics, ask_metrics, ask_status
from events.callback_address import AddressRule, Resolve
from events.errors import DatabaseUnavailable
from events.retry import keep_trying
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.keys import ApiKeys
from events.store.read_model import ReadModel
from serve_app.api import create_api
from serve_app.assembly import Dependencies, assemble
from serve_app.endpoints.declared import DeclaredEndpoints, read_declarations
from serve_app.middleware import RequestIdFilter
from serve_app.protocols.comfyui.websocket import MAX_MESSAGE_BYTES
from serve_app.replica_port import limit_websocket_messages, listen_on_node_address
from serve_app.role_holder import Roles
from serve_app.setup_warnings import variable_warnings
from settings.constant import constant
from settings.settings import Settings
from settings.stores import StoreSettings
from telemetry.api_metrics import AskAll
from telemetry.exporter import open_exporter
from telemetry.exposition import METRICS_TIMEOUT_S
from telemetry.logs import set_up_logging

logger = logging.getLogger(__name__)

_DEFAULT_REPLICAS = 2
_MAX_ONGOING_REQUESTS = 4096
_LOG_KNOWN_S = constant("LOG_KNOWN_S", 10.0)
"""Seconds for which the last state of the log and the queues is used while NATS does not answer.
After this time, submissions are refused with 503.
"""
_READY_PERIOD_S = constant("READY_PERIOD_S", 5.0)
"""Seconds for which the result of `/health/ready` is cached."""
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
        max_ongoing_requests=_MAX_ONGOING_REQUESTS,
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
    limit_websocket_messages(MAX_MESSAGE_BYTES)
    for warning in _variable_warnings():
        logger.warning(
            "an environment variable is not a setting",
            extra={"action": "start", "warning": warning},
        )
    return build_asgi(settings, is_in_serve=True)


def build_asgi(settings: Settings, *, is_in_serve: bool = False) -> FastAPI:
    """Build the ASGI application of one replica. It answers before its connections are open."""
    connections = open_connections(
        settings.log,
        f"api@{socket.gethostname()}",
        max_staleness_s=_LOG_KNOWN_S,
    )
    bus = connections.bus
    database = open_database(settings.stores)
    resolver = Resolver()
    rule = address_rule(
        settings.callbacks, http=settings.http, log=settings.log, stores=settings.stores
    )
    sender = Sender(rule, proxy=settings.callbacks.proxy, resolve=resolver.resolve)
    outside = _outside(
        settings, connections, database, rule=rule, resolve=resolver.resolve, sender=sender
    )

    exporter = open_exporter(settings.telemetry, "api")
    replica = assemble(
        settings,
        outside,
        secret=settings.stores.secret_bytes,
        default_endpoint=default_endpoint(settings.default_endpoint),
        exporter=exporter,
        warnings=_variable_warnings(),
    )

    @asynccontextmanager
    async def background() -> AsyncGenerator[None]:
        tasks = [
            asyncio.create_task(answer_metrics(bus, replica.metrics.encoded)),
            asyncio.create_task(_prepare(database, settings)),
            asyncio.create_task(outside.progress.run()),
        ]
        if exporter is not None:
            tasks.append(asyncio.create_task(exporter.run()))
        bus.start()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await bus.close()
            await database.close()
            await sender.close()
            resolver.close()

    return create_api(
        replica,
        http=settings.http,
        protocol_settings=settings.protocols,
        background=background,
        is_in_serve=is_in_serve,
    )


async def _prepare(database: Database, settings: Settings) -> None:
    await database.prepare_with_retries()
    endpoints, default = Endpoints(database), default_endpoint(settings.default_endpoint)
    # If the database is unavailable, the dispatcher adds the endpoint later.
    with suppress(DatabaseUnavailable):
        await endpoints.add_missing(default)
    if (path := settings.default_endpoint.file) is not None:
        declared = DeclaredEndpoints(endpoints, default=default, settings=settings.dispatch)
        await keep_trying(lambda: declared.apply(path), on=DatabaseUnavailable)


def _outside(
    settings: Settings,
    connections: Connections,
    database: Database,
    *,
    rule: AddressRule,
    resolve: Resolve,
    sender: Sender,
) -> Dependencies:
    bus, log, deliveries = connections.bus, connections.log, connections.deliveries
    images = open_images(settings.stores)
    url_for = image_urls(settings.http, settings.stores)
    secrets = SigningSecrets(ApiKeys(database), secret=settings.stores.secret_bytes)
    return Dependencies(
        database=database,
        images=images,
        removal=open_removal(database, images, ReadModel(database), log=log, deliveries=deliveries),
        history=open_history(database, images, log=log, deliveries=deliveries),
        log_contents=log_contents(bus),
        queue=connections.queue,
        callback_queue=connections.callback_queue,
        health=JetStreamHealth(bus, ready_period_s=_READY_PERIOD_S, max_staleness_s=_LOG_KNOWN_S),
        progress=ProgressBoard(bus),
        endpoint_status=partial(ask_status, bus),
        ask_metrics=_asking_all(settings, bus),
        catalogue=_catalogue(settings.stores),
        address_rule=rule,
        resolve=resolve,
        fetch=_fetcher(settings, rule).fetch,
        send_sample=SampleCallback(sender=sender, secrets=secrets, url_for=url_for).send,
        url_for=url_for,
    )


def _asking_all(settings: Settings, bus: Bus) -> AskAll:
    processes = len(ROLES) + (settings.http.replicas or 1)
    timeout_s = METRICS_TIMEOUT_S
    return partial(ask_metrics, bus, enough=processes, timeout_s=timeout_s)


def _variable_warnings() -> tuple[str, ...]:
    return variable_warnings(Settings.unknown_variables(os.environ))


def _catalogue(settings: StoreSettings) -> Catalogue:
    models = ModelsFolder(settings.models_dir)
    return Catalogue(models, installed_nodes())


def _fetcher(settings: Settings, rule: AddressRule) -> Fetcher:
    """Build the fetcher with its own resolver, so that its look-ups do not delay callbacks."""
    proxy = settings.callbacks.proxy
    return Fetcher(
        rule,
        max_bytes=settings.http.max_upload_bytes,
        resolve=Resolver().resolve,  # The threads of the resolver end with the process.
        proxy=None if proxy is None else Proxy.at(proxy.get_secret_value()),
    )
