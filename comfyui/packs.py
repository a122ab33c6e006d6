"""The commits of the node packs of a ComfyUI install, read from their git folders."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_MOST_PACKS = 100
_MOST_BYTES = 2**20
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHOWN_DIGITS = 12
_REF = "ref: "


def pack_commits(custom_nodes: Path) -> dict[str, str]:
    """Return the first digits of the commit of each pack with a git folder, by the pack's folder.

    Git is not run, because it refuses repositories of other users. Changed files are not noticed.
    """
    commits: dict[str, str] = {}
    with suppress(OSError):
        for folder in sorted(custom_nodes.iterdir()):
            if len(commits) == _MOST_PACKS:
                break
            if commit := _commit(folder):
                commits[folder.name] = commit[:_SHOWN_DIGITS]
    return commits


def _commit(folder: Path) -> str | None:
    git = folder / ".git"
    if git.is_file():  # The folder is a submodule.
        git = folder / _text(git).removeprefix("gitdir: ")
    head = _text(git / "HEAD")
    if head.startswith(_REF):
        name = head.removeprefix(_REF)
        head = _text(git / name) or _packed(_text(git / "packed-refs"), name)
    return head if _COMMIT.fullmatch(head) else None


def _packed(refs: str, name: str) -> str:
    """Return the commit of a ref in the content of `packed-refs`, or an empty text."""
    lines = (line.split(" ") for line in refs.splitlines())
    return next((words[0] for words in lines if words[1:] == [name]), "")


def _text(path: Path) -> str:
    """Return the text of a file, or an empty text if the file does not exist or is too large."""
    try:
        if path.is_file() and path.stat().st_size <= _MOST_BYTES:
            return path.read_text(errors="replace").strip()
    except OSError:
        pass
    return ""
