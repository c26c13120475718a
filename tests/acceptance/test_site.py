"""The documentation's site builds strictly, and each of its links leads somewhere."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tools.prose import documents, wrapped

import qo

REPOSITORY = Path(__file__).parents[2]
LINK = re.compile(r'(?:href|src)="([^"]*)"')
ANCHOR = re.compile(r'(?:id|name)="([^"]*)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False, env={"NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_link_of_the_site_leads_to_a_page_and_a_place_in_it(site):
    pages = {path: path.read_text() for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 30
    anchors = {path: set(map(html.unescape, ANCHOR.findall(text))) for path, text in pages.items()}
    wrong = []
    for path, text in pages.items():
        for link in map(html.unescape, LINK.findall(text)):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or (
                parts.fragment and target in pages and unquote(parts.fragment) not in anchors[target]
            ):
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert wrong == []


def test_nothing_is_fetched_from_elsewhere(site):
    fetched = re.compile(
        r'<(?:script|img|iframe)[^>]*src="https?:|<link[^>]*rel="(?:stylesheet|preload)"[^>]*href="https?:'
    )
    assert [path.name for path in site.rglob("*.html") if fetched.search(path.read_text())] == []


def test_the_reference_of_the_python_api_has_every_public_name(site):
    text = (site / "reference/api.html").read_text()
    errors = {
        name for name in qo.__all__ if isinstance(getattr(qo, name), type) and issubclass(getattr(qo, name), Exception)
    }
    missing = [
        name for name in qo.__all__ if f'id="qo.{name}"' not in text and f'id="qo.core.errors.{name}"' not in text
    ]
    assert [name for name in missing if name not in errors] == []
    assert len(errors) > 10


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_prose_is_wrapped(document):
    assert wrapped(document.read_text()) == document.read_text(), "run `make generated`"
