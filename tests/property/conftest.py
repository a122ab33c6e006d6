"""A compiler, random requests for it, and the jobs that it accepts."""

from __future__ import annotations

import pytest

from engine.graph.catalogue import Catalogue
from events.store.records import Endpoint
from events.types import Flavour, Submitted
from serve_app.acceptance.acceptance import terms_of
from serve_app.acceptance.compilation import CheckedBody, RequestCompiler
from settings.graph import GraphSettings
from tests.support.engine.mutations import Requests
from tests.support.events import submitted


@pytest.fixture(scope="module")
def compiler(catalogue: Catalogue) -> RequestCompiler:
    return RequestCompiler(Endpoint("default"), catalogue, GraphSettings(), default_checkpoint=None)


@pytest.fixture(scope="module")
def requests(catalogue: Catalogue) -> Requests:
    return Requests(catalogue)


def accepted(checked: CheckedBody, flavour: Flavour) -> Submitted:
    return submitted(
        flavour=flavour,
        request=checked.recorded_request,
        compiled=checked.recorded_graph,
        images=checked.images,
        terms=terms_of(Endpoint("default"), GraphSettings()),
    )
