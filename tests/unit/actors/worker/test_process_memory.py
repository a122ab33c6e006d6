from __future__ import annotations

import os
import subprocess
import sys

import pytest

from actors.worker import process_memory
from actors.worker.process_memory import default_bytes, job_actors_that_fit
from engine.container_memory import ContainerMemory

TAKE_TOO_MUCH = """
import torch
from actors.worker.process_memory import limit_memory
from engine.diffusion.device_error import memory_checked
from engine.errors import OutOfMemory, is_out_of_memory
import numpy
from PIL import Image

limit_memory(1500 * 2**20, device="cpu")
too_much = 4 * 2**30
asks = {
    "torch": lambda: torch.zeros(too_much // 4),
    "numpy": lambda: numpy.ones(too_much, numpy.uint8),
    "Pillow": lambda: Image.new("L", (2**16, too_much // 2**16)),
    "Python": lambda: bytearray(too_much),
}
for name, ask in asks.items():
    try:
        ask()
    except Exception as error:
        print(name, is_out_of_memory(error))
print(len(bytearray(2**20)))
"""


def test_too_much_memory_is_an_error_of_what_asked_for_it_and_the_process_goes_on() -> None:
    command = [sys.executable, "-c", TAKE_TOO_MUCH]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    *asked, after = done.stdout.splitlines()
    assert asked == ["torch True", "numpy True", "Pillow True", "Python True"]
    assert after == str(2**20)


def test_an_engine_on_a_cpu_may_take_three_quarters_of_the_machine() -> None:
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < default_bytes("cpu") <= machine_bytes * 3 // 4
    assert default_bytes("cuda") == 0


@pytest.mark.parametrize(("gib", "actors"), [(4, 10), (16, 40), (0.1, 1)])
def test_a_quarter_of_the_machine_is_for_job_actors(
    monkeypatch: pytest.MonkeyPatch, gib: float, actors: int
) -> None:
    monkeypatch.setattr(process_memory, "memory_bytes", lambda: int(gib * 2**30))
    assert job_actors_that_fit() == actors


def test_a_container_counts_instead_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    container = ContainerMemory(limit_bytes=4000, used_bytes=0)
    monkeypatch.setattr(process_memory, "container_memory", lambda: container)
    assert default_bytes("cpu") == 3000
    monkeypatch.setattr(process_memory, "container_memory", lambda: ContainerMemory(2**62, 0))
    assert 2**20 < default_bytes("cpu") < 2**60
