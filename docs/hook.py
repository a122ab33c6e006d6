"""The hooks that MkDocs calls while it builds the site; mkdocs.yml names this file."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.generate.links import DOCS, OUTSIDE, relink, site_path
from docs.generate.markers import fill

_ROOT = Path(__file__).resolve().parents[1]
_SOURCES = {site_path(path): path for path in OUTSIDE}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that the site shows from outside of `docs/`."""
    for path, source in _SOURCES.items():
        files.append(File.generated(config, path, abs_src_path=str(_ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs passes all of them
    """Replace the markers of generated parts, and convert links to files into links to pages."""
    path = page.file.src_uri
    return fill(relink(markdown, _SOURCES.get(path, DOCS + path)))
