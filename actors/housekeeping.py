"""Projection, janitor and archiver, put together: the last two have little to do beside it."""

from __future__ import annotations

from actors.archiving import open_archive
from actors.assembly import Messaging
from actors.sharing import lease_holder, make_shares
from actors.upkeep.archiver import Archiver
from actors.upkeep.janitor import Janitor
from actors.upkeep.orphans import Orphans
from actors.upkeep.results import Results
from events.delivery_policy import longest_delivery_s
from events.store.database import Database
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.uploads import Uploads
from settings.callbacks import CallbackSettings
from settings.settings import Settings
from storage.images import ImageStore


def make_projection(
    settings: Settings, messaging: Messaging, database: Database, read_model: ReadModel
) -> Results:
    """Without leases where it is the only one."""
    shares = make_shares(settings, database, "results", processes=settings.log.projections)
    return Results(
        log=messaging.log,
        read_model=read_model,
        catch_up_period_s=settings.dispatch.requeue_period_s,
        shares=shares,
    )


def make_janitor(
    settings: Settings, messaging: Messaging, database: Database, images: ImageStore
) -> Janitor:
    log, deliveries, read_model = (
        messaging.log,
        messaging.deliveries,
        ReadModel(database, streams=messaging.log_streams),
    )
    archiving, uploads = open_archive(database, images), Uploads(database)
    return Janitor(
        holder=lease_holder(),
        leases=Leases(database),
        deliveries=deliveries,
        read_model=read_model,
        hot_jobs=archiving.hot_jobs,
        segments=archiving.segments,
        uploads=uploads,
        images=images,
        removal=archiving.removal(images, read_model, log=log, deliveries=deliveries),
        orphans=Orphans(
            log=log,
            read_model=read_model,
            uploads=uploads,
            segments=archiving.segments,
            archive=archiving.archive,
            images=images,
            grace_s=settings.retention.sweep_grace_s,
            longest_job_s=settings.dispatch.job_timeout_s,
        ),
        settings=settings.retention,
        longest_job_s=settings.dispatch.job_timeout_s,
        longest_delivery_s=_longest_delivery_s(settings.callbacks),
    )


def make_archiver(
    settings: Settings, messaging: Messaging, database: Database, images: ImageStore
) -> Archiver:
    archiving = open_archive(database, images)
    return Archiver(
        holder=lease_holder(),
        leases=Leases(database),
        log=messaging.log,
        deliveries=messaging.deliveries,
        hot_jobs=archiving.hot_jobs,
        segments=archiving.segments,
        archive=archiving.archive,
        writer=archiving.writer,
        settings=settings.log,
        lease_s=settings.retention.upkeep_lease_s,
        period_s=settings.retention.janitor_period_s,
    )


def _longest_delivery_s(settings: CallbackSettings) -> float:
    return longest_delivery_s(
        delays_s=settings.delays_s, jitter=settings.jitter, withheld_s=settings.withheld_s
    )
