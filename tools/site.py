"""A hook of MkDocs: the documents at the root of the repository are pages of the site, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).parents[1]
AT_THE_ROOT = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK = re.compile(r"(\]\()([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add them under names of their own."""
    for name, page in AT_THE_ROOT.items():
        text = (REPOSITORY / name).read_text()
        files.append(File.generated(config, page, content=_from_the_root(text)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of other pages to them, and to files that are not documents."""
    depth = page.file.src_uri.count("/")
    return _LINK.sub(lambda found: found[1] + _inside(found[2], depth), markdown)


def _from_the_root(text: str) -> str:
    """Their links are said from the root, where the documents are in `docs`."""
    return _LINK.sub(lambda found: found[1] + AT_THE_ROOT.get(found[2], found[2].removeprefix("docs/")), text)


def _inside(link: str, depth: int) -> str:
    """A link that leaves `docs`, as the site has it; a source file has no page, and is only named."""
    up = "../" * (depth + 1)
    if not link.startswith(up):
        return link
    name = link.removeprefix(up)
    return "../" * depth + AT_THE_ROOT[name] if name in AT_THE_ROOT else "#"
