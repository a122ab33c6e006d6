"""Where callbacks and images may be sent, and how often and how long that is tried."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.fields import Networks, Ports, ProxyUrl, Seconds
from settings.group import Group


class CallbackSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_CALLBACK_")

    allow_networks: Networks = ()
    """The networks that callbacks may go to in addition to public addresses, as a JSON list or
    with commas."""
    deny_networks: Networks = ()
    """The networks that callbacks may not go to, even if they are public or allowed. Where this
    service itself listens is denied in any case."""
    require_https: bool = False
    """Whether callback addresses without TLS are refused."""
    ports: Ports = ()
    """The ports that callbacks may go to; if empty, 80, 443 and all from 1024 up."""
    proxy: ProxyUrl = None
    """The proxy that callbacks go through (`http://[user:password@]host:port`); it must support
    CONNECT."""
    connect_timeout_s: PositiveFloat = 3.0
    """How long it may take to connect to a receiver."""
    timeout_s: PositiveFloat = 15.0
    """How long a receiver may take to answer, from the start of a try."""
    max_answer_bytes: PositiveInt = 16 * 1024
    """How much of a receiver's answer is read."""
    delays_s: Seconds = (0, 5, 30, 120, 600, 1800, 3600, 10800, 21600, 43200)
    """How long the pauses before the first try and each further one are."""
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The part of a pause by which it may be longer or shorter."""
    processes: Annotated[int, Field(ge=1, le=16)] = 1
    """How many processes make deliveries. Each has receivers of its own, by a hash of their hosts
    and ports."""
    in_flight: PositiveInt = 256
    """How many deliveries are made at the same time, by each process."""
    per_host: PositiveInt = 4
    """How many deliveries to one host are made at the same time."""
    breaker_failures: PositiveInt = 4
    """How many failures in a row open the circuit breaker of a host, which then gets no
    deliveries for a while."""
    breaker_open_s: PositiveFloat = 15.0
    """How long a circuit breaker is open the first time; then one delivery is tried, and each
    failure doubles the time."""
    breaker_longest_s: PositiveFloat = 600.0
    """The longest time that a circuit breaker is open before one delivery is tried."""
    withheld_s: PositiveFloat = 172_800.0
    """How long circuit breakers may keep a delivery from its host before it is given up."""
    max_images: NonNegativeInt = 32
    """Of how many images of one job, the first of its results, its caller is told before the end,
    where that was asked for; the end tells of all."""
    before_end_s: PositiveFloat = 300.0
    """How long after the end of a job its callback waits for those of its start and its images,
    which are then given up."""
    secrets: PositiveInt = 3
    """The most signatures that a delivery has: that of its key, then those of the owner's newest
    other keys."""
    max_redeliveries: NonNegativeInt = 100
    """How often the callback of one job may be asked for once more; 0 is any number."""
    max_errors: PositiveInt = 10
    """How often an error of the service itself, which may pass, keeps a delivery from being made
    before it is given up."""
    repair_batch: PositiveInt = 5000
    """How many deliveries that have not ended are looked at in each round of the repair, which
    puts lost ones back on their queue."""
    tests_per_minute: PositiveInt = 10
    """How many test callbacks one owner may send per minute."""


class ImagePutSettings(Group):
    """How images are put where their callers say.

    Where that may be is as the settings of callbacks have it.
    """

    model_config = SettingsConfigDict(env_prefix="DARKROOM_IMAGE_PUT_")

    enabled: bool = True
    """Whether a request may have `image_put_urls`, to which its images are sent by PUT."""
    max_urls: PositiveInt = 32
    """How many of them a request may have."""
    max_bytes: PositiveInt = 128 * 1024**2
    """The largest image that is put."""
    timeout_s: PositiveFloat = 60.0
    """How long one try may take, from its start to the answer."""
    delays_s: Annotated[Seconds, Field(min_length=1)] = (0, 5, 30, 120)
    """How long the pauses before the first try and each further one are."""
    longest_s: PositiveFloat = 600.0
    """How long after the end of a job its images are put; those that are left then are given up.
    The callback of the end waits for them. Time in which no callbacks role ran is not counted."""
    in_flight: PositiveInt = 16
    """How many images are put at the same time, at most half of them for one owner."""
