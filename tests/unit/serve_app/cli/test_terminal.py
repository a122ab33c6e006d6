"""What the command line writes for people is still one line each for a program."""

from __future__ import annotations

from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.terminal import stderr, use_json, write_error


def test_an_error_is_one_line_however_narrow_the_terminal_is() -> None:
    message = "There is no event log at this place. " * 10
    use_json(False)
    with stderr.capture() as written:
        write_error(message, code=ExitCode.FAILED)
    assert written.get() == message + "\n"
