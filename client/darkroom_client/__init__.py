"""A client of Darkroom: submit, wait, watch, download, upload, and verify callbacks."""

from darkroom_client.asynchronous import AsyncDarkroom
from darkroom_client.errors import (
    AnswerInvalid,
    DarkroomError,
    NotEnded,
    Refused,
    SignatureInvalid,
    Unreachable,
)
from darkroom_client.synchronous import Darkroom
from darkroom_client.values import (
    Callback,
    Event,
    Image,
    JobFailed,
    Options,
    Put,
    PutState,
    Result,
    State,
    Upload,
)
from darkroom_client.webhooks import verified

__all__ = [
    "AnswerInvalid",
    "AsyncDarkroom",
    "Callback",
    "Darkroom",
    "DarkroomError",
    "Event",
    "Image",
    "JobFailed",
    "NotEnded",
    "Options",
    "Put",
    "PutState",
    "Refused",
    "Result",
    "SignatureInvalid",
    "State",
    "Unreachable",
    "Upload",
    "verified",
]
