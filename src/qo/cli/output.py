"""What people read: tables and progress with `rich` where there is a terminal, plain text where there is none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

Advance = Callable[[int], None]


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Rows under their headings; without rows, that there are none."""
    if not rows:
        print(empty)
    elif not sys.stdout.isatty() or not _print_richly(head, rows):
        print(table(head, rows))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them; numbers to the right."""
    lines = [list(head), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    right = [_is_numeric(rows, column) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


@contextlib.contextmanager
def progress(doing: str, total: int | None = None) -> Iterator[Advance]:
    """A bar on a terminal, moved by the count that it is called with; nothing where there is no terminal."""
    try:
        from rich.console import Console  # noqa: PLC0415 - it need not be there
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    except ImportError:
        yield lambda _: None
        return
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    shown = console.is_terminal
    to_both = sys.stdout.isatty()  # else what is printed goes where it was sent, and not to the bar's terminal
    with Progress(*columns, console=console, transient=True, disable=not shown, redirect_stdout=to_both) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda count: bar.advance(task, count)


def printable(text: str) -> str:
    """What would move the cursor is shown, not obeyed."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _print_richly(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether `rich` was there to print with."""
    try:
        from rich import box  # noqa: PLC0415 - it need not be there
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return False
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, name in enumerate(head):
        drawn.add_column(
            name, justify="right" if _is_numeric(rows, column) else "left", overflow="fold", no_wrap=name == "id"
        )
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(drawn)
    return True


def _is_numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    return bool(rows) and all(row[column].replace(".", "", 1).replace("-", "", 1).isdigit() for row in rows)
