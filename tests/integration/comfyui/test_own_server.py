"""The process of a ComfyUI install: its start, its folders and its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from comfyui.errors import StartFailed
from comfyui.own_server import Install, OwnServer
from tests.support.comfyui.standin_server import FOLDER, install, standin
from tests.support.polling import eventually


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_server_is_ready_after_its_start(tmp_path: Path) -> None:
    async with standin(tmp_path / "server") as (process, client):
        stats = await client.system_stats()

        assert "--cpu" in stats["system"]["argv"]
        assert process.failed_imports == ["broken-pack"]
        assert not process.has_ended


async def test_the_commits_of_packs_are_read_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "install"
    git = folder / "custom_nodes" / "a-pack" / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text("0123456789" * 4)
    shutil.copy(FOLDER / "main.py", folder)
    server = OwnServer(Install(folder, Path(sys.executable)), tmp_path / "server", on_cpu=True)
    client = await server.start()
    try:
        assert server.packs == {"a-pack": "012345678901"}
    finally:
        await client.close()
        await server.close()


async def test_a_server_has_no_secrets_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARKROOM_ADMIN_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    async with standin(tmp_path / "server") as (process, _):
        assert process._process is not None
        environment = psutil.Process(process._process.pid).environ()

    assert "secret" not in environment.values()
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize("has_partner_nodes", [False, True])
async def test_partner_nodes_are_off_unless_they_are_asked_for(
    tmp_path: Path, has_partner_nodes: bool
) -> None:
    chosen = replace(install(), has_partner_nodes=has_partner_nodes)
    process = OwnServer(chosen, tmp_path / "server", on_cpu=True)
    client = await process.start()
    arguments = (await client.system_stats())["system"]["argv"]
    await client.close()
    await process.close()

    assert ("--disable-api-nodes" in arguments) is not has_partner_nodes


async def test_comfyui_manager_does_not_use_the_network(tmp_path: Path) -> None:
    async with standin(tmp_path / "server"):
        config = ConfigParser()
        config.read(tmp_path / "server" / "user" / "default" / "ComfyUI-Manager" / "config.ini")

    assert dict(config["default"]) == {"network_mode": "offline"}


async def test_the_files_of_a_job_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    async with standin(folder) as (process, client):
        await client.upload("a.png", b"content")
        (folder / "output" / "job").mkdir()
        (folder / "output" / "job" / "b.png").touch()

        process.empty_folders()

        folders = [folder / each for each in ("output", "input", "temp")]
        assert [path for each in folders for path in each.rglob("*") if path.is_file()] == []


async def test_a_failed_start_shows_the_last_lines_of_the_log_at_once(tmp_path: Path) -> None:
    process = OwnServer(install("--fail-start"), tmp_path / "server", on_cpu=True)

    with pytest.raises(StartFailed) as failed:
        await process.start()

    assert str(failed.value) == (
        "0.1 seconds (IMPORT FAILED): /packs/broken-pack | the device is not available "
        "(exit status 1)"
    )


async def test_a_server_without_a_required_node_type_does_not_start(tmp_path: Path) -> None:
    required = ("Picture", "NodeOfAPack", "Another")
    process = OwnServer(install(), tmp_path / "server", on_cpu=True, required_nodes=required)

    with pytest.raises(StartFailed) as failed:
        await process.start()

    assert process.has_ended
    assert "the server has no NodeOfAPack, Another, but" in str(failed.value)
    assert "could not be imported: broken-pack" in str(failed.value)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Install(Path("/nowhere")), "has no main.py"),
        (Install(FOLDER), "has no interpreter"),
        (Install(FOLDER, Path("/nowhere/python")), "there is no interpreter /nowhere/python"),
        (Install(FOLDER, FOLDER / "main.py"), "cannot be started"),
    ],
)
async def test_an_install_that_cannot_run_is_named(
    tmp_path: Path, broken: Install, message: str
) -> None:
    with pytest.raises(StartFailed, match=message):
        await OwnServer(broken, tmp_path / "server", on_cpu=True).start()


async def test_an_install_uses_the_interpreter_of_its_virtual_environment(tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()

    assert Install(tmp_path).interpreter() == python


async def test_arguments_of_the_operator_do_not_replace_ours(tmp_path: Path) -> None:
    server = OwnServer(install("--listen=0.0.0.0", "--port=1"), tmp_path / "server", on_cpu=True)
    client = await server.start()
    try:
        assert "127.0.0.1" in client.url
        assert not client.url.endswith(":1")
    finally:
        await client.close()
        await server.close()


async def test_a_kill_ends_the_server(tmp_path: Path) -> None:
    async with standin(tmp_path / "server") as (process, _):
        process.kill()

        await eventually(lambda: process.has_ended, within_s=10)


PARENT = """
import asyncio, sys
from pathlib import Path
from tests.support.comfyui.standin_server import standin

async def main():
    async with standin(Path(sys.argv[1])) as (process, _):
        print(process._process.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        str(tmp_path / "server"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert is_alive(pid)

    os.kill(parent.pid, signal.SIGKILL)

    await eventually(lambda: not is_alive(pid), within_s=10)
    await parent.wait()
