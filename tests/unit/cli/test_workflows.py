"""`darkroom run` and `darkroom workflows`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.support.edge import Edge
from tests.support.generate_bodies import workflow_body
from tests.support.polling import eventually
from tests.support.uploads import png
from tests.unit.cli.conftest import Run

GRAPH = workflow_body()["prompt"]


async def test_a_graph_is_stored_run_marked_and_deleted(
    edge: Edge, run: Run, tmp_path: Path
) -> None:
    key = await edge.key()
    file = tmp_path / "portrait.json"
    file.write_text(json.dumps(GRAPH))
    stored = await run(key, "workflows", "store", "portrait", str(file))
    assert "portrait@1 is stored" in stored.output
    assert "negative_prompt" in stored.output
    running = asyncio.create_task(run(key, "run", "portrait", "prompt=12", "steps=3"))
    [job_id] = await eventually(edge.log.job_ids)
    await edge.run(job_id, images=0)
    ended = await running
    assert ended.exit_code == 0, ended.output
    named = (await edge.job(job_id)).submitted.workflow
    assert named is not None
    assert (named.inputs["prompt"], named.inputs["steps"]) == ("12", 3)
    # The name exists, so this is its second version.
    await run(key, "workflows", "store", "portrait", str(file), "--description=new")
    assert "means version 1" in (await run(key, "workflows", "mark", "portrait", "1")).output
    assert "portrait" in (await run(key, "workflows", "list")).output
    shown = json.loads((await run(key, "workflows", "show", "portrait@2")).output)
    assert shown["description"] == "new"
    assert "is deleted" in (await run(key, "workflows", "delete", "portrait")).output
    assert (await run(key, "run", "portrait")).exit_code == 4


async def test_an_image_contains_the_graph_and_files_are_uploaded(
    edge: Edge, run: Run, tmp_path: Path
) -> None:
    key = await edge.key()
    graph = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "none.png"}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    texts = PngInfo()
    texts.add_text("prompt", json.dumps(graph))
    Image.new("RGB", (8, 8)).save(tmp_path / "old.png", pnginfo=texts)
    (tmp_path / "cat.png").write_bytes(png())
    stored = await run(key, "workflows", "store", "copy", str(tmp_path / "old.png"))
    assert stored.exit_code == 0, stored.output
    running = asyncio.create_task(run(key, "run", "copy", f"image=@{tmp_path / 'cat.png'}"))
    [job_id] = await eventually(edge.log.job_ids)
    await edge.run(job_id, images=0)
    ended = await running
    assert ended.exit_code == 0, ended.output
    named = (await edge.job(job_id)).submitted.workflow
    assert named is not None
    assert named.inputs == {"image": "cat.png"}


async def test_wrong_words_are_told(edge: Edge, run: Run, tmp_path: Path) -> None:
    key = await edge.key()
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(GRAPH))
    await run(key, "workflows", "store", "portrait", str(file))
    assert (await run(key, "run", "portrait", "steps")).exit_code == 2
    wrong = await run(key, "run", "portrait", "steps=many")
    assert wrong.exit_code == 3
    assert "inputs.steps: must be a whole number" in wrong.output
    (tmp_path / "text").write_text("no graph")
    refused = await run(key, "workflows", "store", "other", str(tmp_path / "text"))
    assert refused.exit_code == 3
