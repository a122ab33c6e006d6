"""A job by the generated Python client: a diffusion request, its result, its picture.

It runs where the client does, without anything of Darkroom.
"""

from __future__ import annotations

import os
import sys
from urllib.parse import parse_qs, urlsplit

from darkroom_client import AuthenticatedClient
from darkroom_client.api.files import get_file
from darkroom_client.api.generate import generate_diffusion
from darkroom_client.api.jobs import job_result
from darkroom_client.models import DiffusionRequest, ErrorBody, ResultResponse

KEY = os.environ["KEY"]


def client(key: str) -> AuthenticatedClient:
    return AuthenticatedClient(os.environ["URL"], key, timeout=90)


def main() -> None:
    body = DiffusionRequest(prompt="a large red circle on white", width=64, height=64, steps=4)
    refused = generate_diffusion.sync(client=client("wrong"), body=body)
    assert isinstance(refused, ErrorBody), refused
    assert refused.error.type_ == "unauthorized", refused
    with client(KEY) as caller:
        accepted = generate_diffusion.sync(client=caller, body=body)
        assert isinstance(accepted, ResultResponse), accepted
        ended = accepted
        while ended.status == 0:
            answer = job_result.sync(accepted.request_id, client=caller, wait=60)
            assert isinstance(answer, ResultResponse), answer
            ended = answer
        url = urlsplit(ended.results[0].url)
        _, _, id, name = url.path.split("/")
        [token] = parse_qs(url.query)["token"]
        picture = get_file.sync_detailed(id, name, client=caller, token=token)
    assert picture.content.startswith(b"\x89PNG"), picture
    sys.stdout.write(f"{ended.state}\n")


main()
