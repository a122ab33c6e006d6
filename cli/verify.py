"""`darkroom verify`: reports disagreements between stores, and changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated

import typer

from cli.terminal import ExitCode, console, fail, printable, stderr, wants_json
from events.errors import ServiceError
from operations.stores import open_stores
from operations.verification import Disagreement, Verification
from settings.settings import Settings
from storage.images import ImageStoreError

ImagesOption = Annotated[
    bool, typer.Option("--images", help="Also read every file and check its digest.")
]
SettleOption = Annotated[
    float, typer.Option(help="Seconds before a disagreement is checked again.", min=0)
]


def verify(images: ImagesOption = False, settle_s: SettleOption = 5.0) -> None:
    """Check that log, histories, read model, queues and files agree. Nothing is changed.

    Reads the stores directly, with the settings of the service. Exits with 0 if all agree, with 1
    if something disagrees, with 6 if not everything could be checked.
    """
    counts: Counter[str] = Counter()
    show = _JsonList() if wants_json() else _Lines()
    try:
        asyncio.run(_verify(Settings.load(), counts, show, digests=images, settle_s=settle_s))
    except (ServiceError, ImageStoreError) as error:
        fail(f"Not everything was checked: {error}", code=ExitCode.UNAVAILABLE)
    show.close()
    if not counts:
        stderr.print("No disagreement.")
        return
    stderr.print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    raise typer.Exit(ExitCode.FAILED)


async def _verify(
    settings: Settings,
    counts: Counter[str],
    show: _Lines | _JsonList,
    *,
    digests: bool,
    settle_s: float,
) -> None:
    async with open_stores(settings.log, settings.stores) as stores:
        verification = Verification(
            stores,
            digests=digests,
            settle_s=settle_s,
        )
        async with aclosing(verification.run()) as found:
            async for disagreement in found:
                counts[disagreement.kind] += 1
                show.add(disagreement)


class _Lines:
    def add(self, found: Disagreement) -> None:
        line = f"{found.kind}  {found.job_id or found.file or '-'}  {found.what}"
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        pass


class _JsonList:
    """Prints each item when it is found, because there may be millions of items."""

    def __init__(self) -> None:
        self._before = "["

    def add(self, found: Disagreement) -> None:
        body = {name: value for name, value in asdict(found).items() if value is not None}
        typer.echo(f"{self._before}\n{json.dumps(body)}", nl=False)
        self._before = ","

    def close(self) -> None:
        typer.echo("[]" if self._before == "[" else "\n]")
