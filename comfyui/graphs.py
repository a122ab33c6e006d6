"""Pure functions on ComfyUI's graphs (API format) and on the entries of its history."""

from __future__ import annotations

import posixpath
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from comfyui.errors import ComfyUIError, NodeError, PromptInterrupted

INPUT_SUFFIX = " [input]"
"""ComfyUI's suffix for the name of a file in the input folder, which is also the default."""
_PREFIX = "filename_prefix"
_RUN_ID = "darkroom_run"
_SEEDS = ("seed", "noise_seed")
_TEMP = "temp"
_LOADED = {("LoadImage", "image"), ("LoadImageMask", "image")}
"""The inputs of a diffusion job's graph that name files."""


def with_job_files(
    graph: Mapping[str, Any],
    run_id: str,
    names: Mapping[str, str],
    *,
    is_diffusion: bool = False,
) -> dict[str, Any]:
    """Return the graph of one attempt with the names of its files on the server.

    `run_id` is unique. Each literal `filename_prefix` begins with it, so files of different
    attempts have different names. Literal texts that are keys of `names` are replaced, also with
    the suffix ` [input]`. The other texts of a diffusion job are no names of files, so only the
    inputs of its loaders are replaced.

    The server keeps the outputs of nodes, and does not run a node with the same inputs again. The
    files of these outputs are gone, so each node at the end of the graph must run again. Without a
    prefix of its own, such a node gets an additional input, which ComfyUI counts as an input and
    passes to no node.
    """
    sources = {
        value[0]
        for node in graph.values()
        for value in node["inputs"].values()
        if isinstance(value, list) and value and isinstance(value[0], str)
    }

    def changed(class_type: str, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if name == _PREFIX:
            return run_id + posixpath.normpath(f"/{value}")
        if is_diffusion and (class_type, name) not in _LOADED:
            return value
        return names.get(value.removesuffix(INPUT_SUFFIX), value)

    result = {}
    for node_id, node in graph.items():
        class_type = node["class_type"]
        inputs = {name: changed(class_type, name, value) for name, value in node["inputs"].items()}
        if node_id not in sources and not isinstance(inputs.get(_PREFIX), str):
            inputs[_RUN_ID] = run_id
        result[node_id] = {**node, "inputs": inputs}
    return result


def seed_of(graph: Mapping[str, Any], node_id: str) -> int | None:
    """Return the seed of a node, or of the nearest node upstream that has a seed."""
    queue = [node_id]
    seen = set(queue)
    for current in queue:
        inputs = graph[current]["inputs"] if current in graph else {}
        for name in _SEEDS:
            if isinstance(seed := inputs.get(name), int):
                return seed
        linked = [value[0] for value in inputs.values() if isinstance(value, list) and value]
        texts = dict.fromkeys(each for each in linked if isinstance(each, str))
        fresh = [each for each in texts if each in graph and each not in seen]
        seen.update(fresh)
        queue += fresh
    return None


@dataclass(frozen=True, slots=True)
class FileReference:
    """A file on the server, as the history names it."""

    filename: str
    subfolder: str
    type: str
    """The folder of the server: `output`, `temp` or `input`."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a prompt: a file, or a text."""

    node_id: str
    content: FileReference | str


def outputs_of(entry: Mapping[str, Any]) -> list[Output]:
    """Return the outputs in a history entry, in the order of their nodes.

    A node may list its outputs under any key, such as `images`, `gifs`, `audio`, `3d` or `text`.
    Temporary files, for example of previews, are returned only if there is no other output.
    """
    found = list(_outputs(entry.get("outputs") or {}))
    lasting = [each for each in found if not _is_temporary(each)]
    return lasting or found


def _outputs(nodes: Mapping[str, Any]) -> Generator[Output]:
    seen: set[Output] = set()
    for node_id in sorted(nodes, key=_sort_key):
        listed = nodes[node_id].values() if isinstance(nodes[node_id], dict) else ()
        for item in (item for items in listed if isinstance(items, list) for item in items):
            if (content := _content(item)) is None:
                continue
            output = Output(node_id, content)
            if output not in seen:  # Some nodes list a file under two keys.
                seen.add(output)
                yield output


def _content(item: object) -> FileReference | str | None:
    if isinstance(item, str):
        return item
    if not isinstance(item, dict) or not isinstance(filename := item.get("filename"), str):
        return None
    subfolder, folder = item.get("subfolder") or "", item.get("type") or "output"
    return FileReference(filename, str(subfolder), str(folder))


def _is_temporary(output: Output) -> bool:
    return isinstance(output.content, FileReference) and output.content.type == _TEMP


def _sort_key(node_id: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Return a sort key with numbers in the order of their values. Ids of nodes in a subgraph have
    several parts, as in `12:3`.
    """
    parts = node_id.split(":")
    numbers = [(not each.isdecimal(), int(each) if each.isdecimal() else 0, each) for each in parts]
    return numbers, node_id


def _message_of(message: object) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the data of a message. Some versions write a text instead of both."""
    if isinstance(message, str):
        name, _, text = message.partition(":")
        return name.strip(), {"exception_message": text, "exception_type": "Error"}
    match message:
        case [str() as name, dict() as data]:
            return name, data
        case _:
            return "", {}


def error_of(entry: Mapping[str, Any]) -> ComfyUIError | None:
    """Return the error in a history entry, or None if the prompt succeeded."""
    status = entry.get("status") or {}
    if status.get("status_str") != "error":
        return None
    for name, data in reversed([_message_of(each) for each in status.get("messages") or ()]):
        if name == "execution_interrupted":
            return PromptInterrupted("the prompt was interrupted")
        if name == "execution_error":
            return NodeError(
                str(data.get("node_id", "")),
                str(data.get("node_type", "")),
                str(data.get("exception_type", "")).rpartition(".")[2],
                str(data.get("exception_message", "")).strip(),
            )
    return NodeError("", "", "Error", "ComfyUI reports an error without a message")
