"""Tables that people read."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them; numbers to the right."""
    lines = [list(head), *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    right = [bool(rows) and all(_is_number(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdigit()


def _printable(text: str) -> str:
    """What would move the cursor is shown, not obeyed."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
