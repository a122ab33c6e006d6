"""The Serve application, and every part that its HTTP side is made of.

It has two deployments: `Api`, the HTTP ingress, and `Roles`, which holds the actors of the roles.
They are separate because Serve replaces no HTTP replica while an actor of the same deployment fails
to start. `serve run serve_app.app:build` or a RayService starts the whole system.
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

from actors.archiving import open_archive, open_database
from actors.assembly import (
    address_rule,
    default_endpoint,
    open_bus,
    open_deliveries,
    open_images,
    open_log,
    url_maker,
)
from actors.callbacks.guarded_backend import Resolver
from actors.callbacks.proxy import Proxy
from actors.callbacks.sample import SampleCallback
from actors.callbacks.secrets import SigningSecrets
from actors.callbacks.sender import Sender
from actors.fetcher import Fetcher
from actors.logs import set_up_logging
from actors.remote_keeper import CPU_NODE
from actors.role_mains import RoleMain, role_mains
from engine.extensions.installed import installed_extensions, log_extensions, nodes_of
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from engine.nodes import NODE_TYPES
from events.bus.bus import Bus
from events.bus.contents import log_contents
from events.bus.dispatching.endpoint_status import ask_status
from events.bus.health import JetStreamHealth
from events.bus.progress import ProgressBoard
from events.bus.queues import JetStreamCallbackQueue, JetStreamJobQueue
from events.bus.telemetry.metrics import answer_metrics, ask_metrics
from events.callback_address import Resolve
from events.errors import DatabaseUnavailable
from events.retry import keep_trying
from events.store.adapters.key_options import KeyOptions
from events.store.adapters.user_files import UserFiles
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.keys import ApiKeys
from events.store.read_model import ReadModel
from events.store.uploads import Uploads
from serve_app.api import create_api
from serve_app.endpoints.declared import DeclaredEndpoints, read_declarations
from serve_app.middleware.request_ids import RequestIdFilter
from serve_app.operations.setup_warnings import variable_warnings
from serve_app.replica import Replica
from serve_app.replica_port import limit_websocket_messages, listen_on_node_address
from serve_app.role_holder import Roles
from serve_app.services import Services
from settings.http import AdapterSettings
from settings.settings import Settings
from settings.stores import StoreSettings
from telemetry.edge_metrics import AskAll
from telemetry.tracing.exporter import open_exporter

logger = logging.getLogger(__name__)

_DEFAULT_REPLICAS = 2
_MAX_ONGOING_REQUESTS = 4096
_RETRIES = 1_000_000
"""Serve has no number for "without end"."""


def build(args: dict[str, Any]) -> Application:
    """The application by the `DARKROOM_*` settings; the arguments of Serve override them."""
    return build_with(Settings.load(**args))


def build_with(settings: Settings) -> Application:
    """Raises ValueError where the settings have no secret, EndpointsFileInvalid."""
    settings = _with_replicas(settings.with_absolute_folders())
    if (path := settings.default_endpoint.file) is not None:
        read_declarations(path)
    settings.stores.secret_bytes  # noqa: B018 - it fails here, with a clear message, and not in a replica
    roles = serve.deployment(
        name="Roles",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0, "resources": CPU_NODE},
        deployment_actors=[
            _role(name, main, settings) for name, main in role_mains(settings).items()
        ],
        max_constructor_retry_count=_RETRIES,
    )(Roles)
    api = serve.deployment(
        name="Api",
        num_replicas=settings.http.replicas,
        max_ongoing_requests=_MAX_ONGOING_REQUESTS,
        ray_actor_options={"num_cpus": 0, "resources": CPU_NODE},
        max_constructor_retry_count=_RETRIES,
        graceful_shutdown_timeout_s=5,
        # `DARKROOM_LOG_REQUESTS` has a line for each request, which says more.
        logging_config={"enable_access_log": False},
    )(serve.ingress(lambda: build_replica(settings))())
    application: Application = api.bind(roles.bind())
    return application


def _with_replicas(settings: Settings) -> Settings:
    """Their number is settled once, since each replica grants its part of a rate."""
    if settings.http.replicas is not None:
        return settings
    replicas = min(_DEFAULT_REPLICAS, os.cpu_count() or 1)
    http = settings.http.model_copy(update={"replicas": replicas})
    return settings.model_copy(update={"http": http})


def _role(name: str, main: RoleMain, settings: Settings) -> DeploymentActorConfig:
    pickled = b64encode(pickle.dumps(settings)).decode()
    return DeploymentActorConfig(
        name=name,
        actor_class="actors.remote:RoleActor",
        init_kwargs={"main": main.path, "settings": pickled, "number": main.number},
        actor_options={"num_cpus": 0, "resources": CPU_NODE},
    )


def build_replica(settings: Settings) -> FastAPI:
    """`build_asgi`, in a process of its own."""
    set_up_logging(log_format=settings.telemetry.log_format, filters=[RequestIdFilter()])
    listen_on_node_address()
    limit_websocket_messages(settings.http.max_websocket_message_bytes)
    for warning in _variable_warnings():
        logger.warning("a variable is no setting", extra={"action": "start", "warning": warning})
    return build_asgi(settings, is_in_serve=True)


def build_asgi(settings: Settings, *, is_in_serve: bool = False) -> FastAPI:
    """The HTTP side of one replica. It answers while it still connects in the background."""
    bus = open_bus(settings.log, f"api@{socket.gethostname()}")
    database = open_database(settings.stores)
    resolver = Resolver()
    sender = Sender(address_rule(settings), settings=settings.callbacks, resolve=resolver.resolve)
    services = _services(settings, bus, database, resolve=resolver.resolve, sender=sender)

    exporter = open_exporter(settings.telemetry, "api")
    replica = Replica(
        services,
        ask_metrics=_asking_all(settings, bus),
        exporter=exporter,
        warnings=_variable_warnings(),
    )

    @asynccontextmanager
    async def background() -> AsyncGenerator[None]:
        tasks = [
            asyncio.create_task(answer_metrics(bus, replica.metrics.encoded)),
            asyncio.create_task(_prepare(database, settings)),
            asyncio.create_task(services.progress.run()),
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

    return create_api(replica, background=background, is_in_serve=is_in_serve)


async def _prepare(database: Database, settings: Settings) -> None:
    await database.prepare_persistently()
    endpoints, default = Endpoints(database), default_endpoint(settings.default_endpoint)
    with suppress(DatabaseUnavailable):  # the dispatcher adds it too, and tries again
        await endpoints.add_missing(default)
    if (path := settings.default_endpoint.file) is not None:
        declared = DeclaredEndpoints(endpoints, default=default, settings=settings.dispatch)
        await keep_trying(lambda: declared.apply(path), on=DatabaseUnavailable)


def _services(
    settings: Settings, bus: Bus, database: Database, *, resolve: Resolve, sender: Sender
) -> Services:
    log, deliveries = open_log(settings.log, bus), open_deliveries(bus)
    read_model, images = ReadModel(database, streams=bus.log_streams), open_images(settings.stores)
    keys, http, archiving = ApiKeys(database), settings.http, open_archive(database, images)
    return Services(
        **_groups(settings),
        default_endpoint=default_endpoint(settings.default_endpoint),
        secret=settings.stores.secret_bytes,
        url_for=url_maker(settings),
        read_model=read_model,
        keys=keys,
        endpoints=Endpoints(database),
        uploads=Uploads(database),
        user_files=_user_files(settings.adapters, database),
        key_options=KeyOptions(database),
        images=images,
        removal=archiving.removal(images, read_model, log=log, deliveries=deliveries),
        history=archiving.history(log=log, deliveries=deliveries),
        log_contents=log_contents(bus),
        hot_jobs=archiving.hot_jobs,
        catalogue=_catalogue(settings.stores),
        address_rule=address_rule(settings),
        resolve=resolve,
        queue=JetStreamJobQueue(bus, lease_s=settings.workers.lease_s, known_s=http.log_known_s),
        callback_queue=JetStreamCallbackQueue(bus),
        fetch=_fetcher(settings).fetch,
        send_sample=_sample_callback(settings, keys, sender).send,
        health=JetStreamHealth(bus, ready_period_s=http.ready_period_s, known_s=http.log_known_s),
        endpoint_status=partial(ask_status, bus),
        progress=ProgressBoard(bus),
    )


def _groups(settings: Settings) -> dict[str, Any]:
    return {
        "http_settings": settings.http,
        "adapter_settings": settings.adapters,
        "graph_settings": settings.graph,
        "dispatch_settings": settings.dispatch,
        "key_settings": settings.keys,
        "owner_settings": settings.owners,
        "callback_settings": settings.callbacks,
        "image_put_settings": settings.image_puts,
        "retention_settings": settings.retention,
        "fetch_settings": settings.fetch,
    }


def _user_files(settings: AdapterSettings, database: Database) -> UserFiles:
    return UserFiles(database, max_files=settings.max_user_files, max_bytes=settings.max_user_bytes)


def _asking_all(settings: Settings, bus: Bus) -> AskAll:
    processes = len(role_mains(settings)) + (settings.http.replicas or 1)
    timeout_s = settings.telemetry.metrics_timeout_s
    return partial(ask_metrics, bus, enough=processes, timeout_s=timeout_s)


def _variable_warnings() -> tuple[str, ...]:
    return variable_warnings(Settings.unknown_variables(os.environ))


def _catalogue(settings: StoreSettings) -> Catalogue:
    models = ModelsFolder(settings.models_dir, timeout_s=settings.models_timeout_s)
    extensions = installed_extensions()
    log_extensions(extensions)
    return Catalogue(models, (*NODE_TYPES, *nodes_of(extensions)))


def _fetcher(settings: Settings) -> Fetcher:
    """It has a resolver of its own, so that the names of images hold up no callbacks."""
    proxy = settings.callbacks.proxy
    return Fetcher(
        address_rule(settings),
        settings=settings.fetch,
        max_bytes=settings.http.max_upload_bytes,
        resolve=Resolver().resolve,  # whose threads end with the process
        proxy=None if proxy is None else Proxy.at(proxy.get_secret_value()),
    )


def _sample_callback(settings: Settings, keys: ApiKeys, sender: Sender) -> SampleCallback:
    secret = settings.stores.secret_bytes
    return SampleCallback(
        sender=sender,
        secrets=SigningSecrets(keys, secret=secret, most=settings.callbacks.secrets),
        url_for=url_maker(settings),
    )
