import asyncio
import threading

import pytest

from engine.patient_reads import PatientReads
from serve_app.checks import Checks
from serve_app.refusals import NoTurn


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


async def test_a_quick_check_runs_at_once() -> None:
    assert (
        await Checks(2, timeout_s=5).run("a", threading.get_ident, is_quick=True)
        == threading.get_ident()
    )


async def test_a_quick_check_that_has_to_wait_for_files_runs_beside_the_loop() -> None:
    reads, gate = PatientReads(ttl_s=60, timeout_s=5), threading.Event()

    def read() -> int:
        gate.wait(5)
        return threading.get_ident()

    def check() -> tuple[int, int]:
        return threading.get_ident(), reads.read("models", read)

    some = Checks(2, timeout_s=5)
    checked = asyncio.create_task(some.run("a", check, is_quick=True))
    await asyncio.sleep(0)
    gate.set()  # this thread is not held up
    by, _ = await checked
    assert by != threading.get_ident()
    by, _ = await some.run("a", check, is_quick=True)
    assert by == threading.get_ident()


async def test_another_check_runs_beside_the_loop_and_its_error_is_raised() -> None:
    some = Checks(2, timeout_s=5)
    assert await some.run("a", threading.get_ident, is_quick=False) != threading.get_ident()
    with pytest.raises(ValueError, match="'x'"):
        await some.run("a", int, "x", is_quick=False)


async def test_one_owner_leaves_a_thread_to_others(gate: threading.Event) -> None:
    some = Checks(2, timeout_s=5)
    mine = [asyncio.create_task(some.run("a", gate.wait, 5, is_quick=False)) for _ in range(3)]
    assert await some.run("b", int, "5", is_quick=False) == 5
    gate.set()
    assert await asyncio.gather(*mine) == [True] * 3


async def test_who_hangs_up_keeps_the_turn_until_the_thread_ends(gate: threading.Event) -> None:
    some = Checks(1, timeout_s=0.05)
    mine = asyncio.create_task(some.run("a", gate.wait, 5, is_quick=False))
    await asyncio.sleep(0.01)
    mine.cancel()
    with pytest.raises(NoTurn):
        await some.run("b", int, "5", is_quick=False)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await mine
    assert await some.run("b", int, "5", is_quick=False) == 5
