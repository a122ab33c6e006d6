"""The router, put together."""

from __future__ import annotations

from actors.assembly import Messaging
from actors.dispatch.router import Router
from actors.sharing import make_shares
from events.log import JobWriter
from events.store.database import Database
from events.store.read_model import ReadModel
from settings.settings import Settings


def make_router(
    settings: Settings, messaging: Messaging, database: Database, *, repairs: bool
) -> Router:
    """Without leases where it is the only one. `repairs`: whether it puts lost entries back."""
    return Router(
        events=messaging.routed_events,
        writer=JobWriter(messaging.log),
        queue=messaging.queue,
        callbacks=messaging.callback_queue,
        read_model=ReadModel(database, streams=messaging.log_streams),
        requeue_period_s=settings.dispatch.requeue_period_s if repairs else None,
        most_images_told=settings.callbacks.max_images,
        shares=make_shares(
            settings,
            database,
            "router",
            processes=settings.log.routers,
            all_without_database=True,
        ),
    )
