"""What the client for programs without an event loop is made of: objects over async ones.

`sync_shells.py` is generated from the async classes. Whatever an async object gives is wrapped
here in the shell that stands over its type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from qo.client.portal import Portal


class Shell:
    """A sync object over an async one. Subclasses name what they stand over: `class SyncQueue(Shell, over=Queue)`."""

    _shells: ClassVar[dict[type, type[Shell]]] = {}

    def __init_subclass__(cls, over: type | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if over is not None:
            Shell._shells[over] = cls

    def __init__(self, portal: Portal, inner: Any) -> None:
        self._portal = portal
        self._inner = inner

    def _wrapped(self, value: Any) -> Any:
        shell = Shell._shells.get(type(value))
        if shell is not None:
            return shell(self._portal, value)
        if type(value) in (list, tuple):
            return type(value)(self._wrapped(each) for each in value)
        return value

    @staticmethod
    def _inner_of(shells: Iterable[Any]) -> list[Any]:
        return [each._inner for each in shells]  # noqa: SLF001 - they are shells as this one is

    def __repr__(self) -> str:
        return f"<Sync{repr(self._inner).lstrip('<')}"
