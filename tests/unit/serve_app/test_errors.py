import httpx
import pytest
from fastapi import FastAPI

from engine.errors import EngineError
from events.errors import ServiceError
from serve_app.errors import ANSWERS
from tests.support.edge import Edge


def leaves(error: type[Exception]) -> list[type[Exception]]:
    below = error.__subclasses__()
    return [leaf for each in below for leaf in leaves(each)] if below else [error]


@pytest.mark.parametrize("error", leaves(ServiceError) + leaves(EngineError))
def test_every_error_of_ours_is_in_the_table(error: type[Exception]) -> None:
    assert error in ANSWERS


async def test_an_unknown_path_has_the_shape(client: httpx.AsyncClient) -> None:
    answer = await client.get("/nowhere")
    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "type": "not_found",
            "message": "There is nothing at this path.",
            "details": "",
            "extra_info": {},
        },
        "node_errors": {},
    }


async def test_another_method_is_405_and_says_which(client: httpx.AsyncClient) -> None:
    answer = await client.get("/workflow/v1/generate")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"
    assert answer.json()["error"]["type"] == "method_not_allowed"


async def test_a_failure_of_ours_hides_its_reason(edge: Edge, client: httpx.AsyncClient) -> None:
    fail_on(edge.app, "/fail", RuntimeError("a secret path"))
    answer = await client.get("/fail")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "internal"
    assert "secret" not in answer.text


def fail_on(app: FastAPI, path: str, error: Exception) -> None:
    @app.get(path)
    async def fail() -> None:
        raise error
