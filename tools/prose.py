"""Wraps the prose of Markdown files at 100 columns: `python -m tools.prose [--check] [FILE ...]`.

Paragraphs and list items are wrapped; headings, tables, fenced blocks, HTML and link definitions stay as they are.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
COLUMNS = 100
_FENCE = re.compile(r"^\s*(```|~~~)")
_KEPT = re.compile(r"^\s*($|#|\||<|!\[|\[[^\]]+\]:|---|>|:::|\$\$)")
_ITEM = re.compile(r"^(\s*)([-*+]|\d+\.)(\s+)")
_CODE = re.compile(r"`[^`\n]+`|\[[^\]\n]*\]\([^)\n]*\)")
_BLANK = "\x00"


def wrapped(text: str) -> str:
    """The same text with its prose wrapped."""
    lines: list[str] = []
    for is_prose, block in _blocks(text.split("\n")):
        lines += _wrap(block) if is_prose and any(len(line) > COLUMNS for line in block) else block
    return "\n".join(lines)


def _blocks(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Paragraphs and list items, and what is between them."""
    fenced, number = False, 0
    marked: list[tuple[int, bool, str]] = []
    for line in lines:
        fence = bool(_FENCE.match(line))
        prose = not fenced and not fence and not _KEPT.match(line)
        if fence:
            fenced = not fenced
        starts = not prose or not marked or not marked[-1][1] or bool(_ITEM.match(line))
        number += starts
        marked.append((number, prose, line))
    for _, group in groupby(marked, key=lambda each: each[0]):
        block = list(group)
        yield block[0][1], [line for _, _, line in block]


def _wrap(block: list[str]) -> list[str]:
    item = _ITEM.match(block[0])
    indent = block[0][: len(block[0]) - len(block[0].lstrip())]
    first = item[0] if item else indent
    later = " " * len(item[0]) if item else indent
    text = " ".join(line.strip() for line in [block[0][len(first) :], *block[1:]])
    text = _CODE.sub(lambda found: found[0].replace(" ", _BLANK), text)
    rows = textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [row.replace(_BLANK, " ") for row in rows]


def documents() -> list[Path]:
    return sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    files = [Path(each) for each in arguments if each != "--check"] or documents()
    changed = [each for each in files if wrapped(each.read_text()) != each.read_text()]
    for each in changed:
        if check:
            print(f"{each}: has prose beyond {COLUMNS} columns; run `make generated`")
        else:
            each.write_text(wrapped(each.read_text()))
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
