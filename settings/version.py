"""The version of the program that runs."""

from importlib.metadata import PackageNotFoundError, version


def _version() -> str:
    try:
        return version("darkroom")
    except PackageNotFoundError:  # run from its sources, which were never installed
        return "0"


VERSION = _version()
