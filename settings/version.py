"""The version of the running program."""

from importlib.metadata import PackageNotFoundError, version


def _version() -> str:
    try:
        return version("darkroom")
    except PackageNotFoundError:  # The program runs from its sources without an installation.
        return "0"


VERSION = _version()
