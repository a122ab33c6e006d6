"""comfyui-mcp: an MCP server whose tools are workflows. Its host has the key."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from fastmcp import Client
from fastmcp.client.transports import StdioTransport

PROMPT = json.loads(os.environ["PROMPT"])
HOST = os.environ["URL"].removeprefix("http://") + "/key/" + os.environ["KEY"]


def workflow(**changes: Any) -> dict[str, Any]:
    """The graph with a title for each node and with a seed that the tool's caller sets."""
    graph = json.loads(json.dumps(PROMPT))
    graph["3"]["inputs"]["seed"] = ["20", 0]
    graph["4"]["inputs"] |= changes
    graph["20"] = {"class_type": "PrimitiveInt", "inputs": {"value": 1}}
    for id, node in graph.items():
        node["_meta"] = {"title": "seed" if id == "20" else f"node {id}"}
    return graph


async def use_tools() -> str:
    """Return the address of the picture."""
    folder = Path("workflows")
    folder.mkdir()
    (folder / "circle").write_text(json.dumps(workflow()))
    (folder / "broken").write_text(json.dumps(workflow(ckpt_name="missing.safetensors")))
    arguments = ["--comfyui.host", HOST, "--comfyui.use_remote_workflow", "false"]
    arguments += ["--comfyui.workflow_directory", str(folder.resolve())]
    arguments += ["--comfyui.queue_check_interval", "0.2", "--comfyui.max_retries", "1"]
    transport = StdioTransport(sys.executable, ["-m", "comfyui_mcp.server", *arguments])
    async with Client(transport) as client:
        assert {tool.name for tool in await client.list_tools()} == {"circle", "broken"}
        made = await client.call_tool("circle", {"seed": PROMPT["3"]["inputs"]["seed"]})
        refused = await client.call_tool("broken", {"seed": 1}, raise_on_error=False)
        assert refused.is_error, refused
    [address] = re.findall(r"\((http\S+)\)", made.content[0].text)
    return str(address)


def main() -> None:
    address = asyncio.run(use_tools())
    with urlopen(address) as answer:
        Path("made.png").write_bytes(answer.read())


main()
