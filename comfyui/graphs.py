"""Pure functions on ComfyUI's graphs (API format) and on the entries of its history."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from comfyui.errors import ComfyUIError, NodeError, PromptInterrupted

_PREFIX = "filename_prefix"
_TEMP = "temp"


def with_job_files(
    graph: Mapping[str, Any], job_id: str, names: Mapping[str, str]
) -> dict[str, Any]:
    """Return the graph of a job with the names of its files on the server.

    Literal values that are keys of `names` are replaced, also with one of ComfyUI's suffixes such
    as ` [input]`. Each literal `filename_prefix` begins with the job id. So save nodes always run,
    although the server may have cached the same graph, and files of different jobs have different
    names.
    """

    def changed(name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if name == _PREFIX:
            return f"{job_id}/{value}"
        return names.get(value.removesuffix(" [input]"), value)

    return {
        node_id: {
            **node,
            "inputs": {name: changed(name, value) for name, value in node["inputs"].items()},
        }
        for node_id, node in graph.items()
    }


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
    for node_id in sorted(nodes, key=_in_order):
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


def _in_order(node_id: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Return a sort key with numbers in the order of their values. Ids of nodes in a subgraph have
    several parts, as in `12:3`.
    """
    parts = node_id.split(":")
    numbers = [(not each.isdecimal(), int(each) if each.isdecimal() else 0, each) for each in parts]
    return numbers, node_id


def error_of(entry: Mapping[str, Any]) -> ComfyUIError | None:
    """Return the error in a history entry, or None if the prompt succeeded."""
    status = entry.get("status") or {}
    if status.get("status_str") != "error":
        return None
    for name, data in reversed(status.get("messages") or ()):
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
