"""Progress as it goes over the bus."""

from __future__ import annotations

import pytest

from events.job_progress import JobProgress, MalformedProgress, decode_progress


@pytest.mark.parametrize(
    "progress",
    [
        JobProgress(done=0, total=1),
        JobProgress(done=7, total=20, node="3", class_type="KSampler", rows=8, images=2),
        JobProgress(done=7, total=20, preview=b"\xff\xd8 a picture"),
    ],
)
def test_what_is_told_is_heard(progress: JobProgress) -> None:
    assert decode_progress(progress.encode()) == progress


def test_an_older_version_tells_the_steps_alone() -> None:
    assert decode_progress(b'{"done": 1, "total": 4}') == JobProgress(done=1, total=4)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'{"done": 1}',
        b'{"done": "x", "total": 2}',
        b'{"done": NaN}',
        b'{"done": 1, "total": 2, "preview": "?"}',
    ],
)
def test_what_is_no_progress_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedProgress):
        decode_progress(data)


@pytest.mark.parametrize(("done", "total", "fraction"), [(1, 4, 0.25), (5, 4, 1.0), (-1, 4, 0.0)])
def test_a_fraction_is_within_0_and_1(done: int, total: int, fraction: float) -> None:
    assert JobProgress(done, total).fraction == fraction


def test_a_job_without_steps_has_done_none() -> None:
    assert decode_progress(b'{"done": 0, "total": 0}').fraction == 0.0
