"""The commits of node packs, from folders that are written as git writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from comfyui.packs import pack_commits

COMMIT = "0123456789ab" + "c" * 28


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "files",
    [
        {"HEAD": COMMIT + "\n"},
        {"HEAD": "ref: refs/heads/main\n", "refs__heads__main": COMMIT + "\n"},
        {
            "HEAD": "ref: refs/heads/main\n",
            "packed-refs": f"# pack-refs with: peeled\n{'d' * 40} refs/heads/other\n^{'e' * 40}\n"
            f"{COMMIT} refs/heads/main\n",
        },
    ],
    ids=["detached", "branch", "packed"],
)
def test_the_commit_of_a_pack_is_read(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path / "packs" / "a-pack" / ".git", **files)

    assert pack_commits(tmp_path / "packs") == {"a-pack": COMMIT[:12]}


def test_the_commit_of_a_submodule_is_read(tmp_path: Path) -> None:
    write(tmp_path / "modules" / "a", HEAD=COMMIT)
    write(tmp_path / "packs" / "a", **{".git": "gitdir: ../../modules/a\n"})

    assert pack_commits(tmp_path / "packs") == {"a": COMMIT[:12]}


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"HEAD": "ref: refs/heads/none"},
        {"HEAD": "ref: ../../../secret"},
        {"HEAD": "ref: /etc/hostname"},
        {"HEAD": "0" * 2**21},
        {"HEAD": "not a commit"},
    ],
)
def test_a_pack_without_a_commit_is_left_out(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, secret="a secret")
    write(tmp_path / "packs" / "a" / ".git", config="", **files)
    write(tmp_path / "packs", **{"one_file.py": ""})

    assert pack_commits(tmp_path / "packs") == {}


def test_the_number_of_packs_is_limited(tmp_path: Path) -> None:
    for number in range(101):
        write(tmp_path / f"{number:03}" / ".git", HEAD=COMMIT)

    assert list(pack_commits(tmp_path)) == [f"{number:03}" for number in range(100)]


def test_an_install_without_packs_has_none(tmp_path: Path) -> None:
    assert pack_commits(tmp_path / "custom_nodes") == {}
