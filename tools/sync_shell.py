"""Writes the sync client's shells from the async classes: the same methods, with the same words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CLIENT = Path(__file__).parents[1] / "src/qo/client"
TARGET = CLIENT / "sync_shells.py"
HEAD = '''"""Written by `make generated` from the async client. Do not edit it: change that, and write it anew."""
'''
SHELLS = {
    "JobHandle": "SyncJobHandle",
    "Delivery": "SyncDelivery",
    "DeadLetters": "SyncDeadLetters",
    "Tokens": "SyncTokens",
    "Schedules": "SyncSchedules",
    "Buffer": "SyncBuffer",
    "Queue": "SyncQueue",
    "Client": "SyncClient",
}


class Source(NamedTuple):
    """An async class, what its shell is called, and what of it is written by hand or not for sync callers."""

    file: str
    name: str
    shell: str
    left_out: frozenset[str] = frozenset()


SOURCES = [
    Source("job", "JobHandle", "SyncJobHandle", frozenset({"broker", "message_id"})),
    Source("delivery", "Delivery", "SyncDelivery", frozenset({"note_settled"})),
    Source("dead", "DeadLetters", "SyncDeadLetters", frozenset({"broker", "queue", "group"})),
    Source("tokens", "Tokens", "SyncTokens", frozenset({"broker"})),
    Source("schedules", "Schedules", "SyncSchedules", frozenset({"broker"})),
    Source("buffer", "Buffer", "BufferShell"),
    Source(
        "queue",
        "Queue",
        "QueueShell",
        frozenset({"consume", "buffered", "want", "broker", "start", "options", "around_pushes"}),
    ),
    Source("client", "Client", "ClientShell", frozenset({"close", "broker"})),
]
WITH = """    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._inner.__aexit__(kind, error, trace))
"""
BY_HAND = {"BufferShell", "QueueShell", "ClientShell"}
"""Shells that something is added to, in `sync.py`."""


def generated() -> str:
    trees = {each.file: ast.parse((CLIENT / f"{each.file}.py").read_text()) for each in SOURCES}
    classes = "\n\n".join(_shell(each, trees[each.file]) for each in SOURCES)
    return _formatted(f"{HEAD}\nfrom __future__ import annotations\n\n{_imports(classes, trees)}\n\n{classes}\n")


def _shell(source: Source, tree: ast.Module) -> str:
    [found] = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == source.name]
    over = "" if source.shell in BY_HAND else f", over={source.name}"
    head = f'class {source.shell}(Shell{over}):\n    """{_first_line(found)}\n\n    See `{source.name}`.\n    """\n\n'
    return head + "\n".join(_members(source, found))


def _first_line(node: ast.ClassDef) -> str:
    text = ast.get_docstring(node) or ""
    return text.splitlines()[0] if text else ""


def _members(source: Source, found: ast.ClassDef) -> Iterator[str]:
    for each in found.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) if _is_ours(source, name):
                head = f"    @property\n    def {name}(self) -> {_sync(each.annotation)}:\n"
                yield head + f'        """See `{source.name}`."""\n' + _answer(each.annotation, f"self._inner.{name}")
            case ast.FunctionDef() | ast.AsyncFunctionDef() if _is_ours(source, each.name):
                yield _method(each)
            case ast.AsyncFunctionDef(name="__aexit__"):
                yield WITH
            case _:
                pass


def _is_ours(source: Source, name: str) -> bool:
    return not name.startswith("_") and name not in source.left_out


def _method(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = "".join(f"    @{ast.unparse(each)}\n" for each in function.decorator_list)
    head = f"{decorators}    def {function.name}({_sync(function.args)}) -> {_sync(function.returns)}:\n"
    text = ast.get_docstring(function, clean=False)
    told = f'        """{text}"""\n' if text else ""
    if any(ast.unparse(each) == "property" for each in function.decorator_list):
        return head + told + _answer(function.returns, f"self._inner.{function.name}")
    made = f"self._inner.{function.name}({_passed_on(function.args)})"
    asked = f"self._portal.call({made})" if isinstance(function, ast.AsyncFunctionDef) else made
    return head + told + _answer(function.returns, asked)


def _answer(returns: ast.expr | None, value: str) -> str:
    kind = _sync(returns)
    if kind == "None":
        return f"        {value}\n"
    if returns is not None and kind != ast.unparse(returns):
        value = f"self._wrapped({value})"
    return f"        answer: {kind} = {value}\n        return answer\n"


def _passed_on(arguments: ast.arguments) -> str:
    """The same arguments as they came; deliveries without their shells."""
    given = [_without_shell(each) for each in arguments.args[1:]]
    if arguments.vararg is not None:
        given.append(f"*{arguments.vararg.arg}")
    given += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        given.append(f"**{arguments.kwarg.arg}")
    return ", ".join(given)


def _without_shell(argument: ast.arg) -> str:
    shelled = argument.annotation is not None and ast.unparse(argument.annotation) == "Iterable[Delivery]"
    return f"self._inner_of({argument.arg})" if shelled else argument.arg


def _sync(node: ast.AST | None) -> str:
    """A type, or arguments with theirs, as the sync client has them."""
    text = "None" if node is None else ast.unparse(node)
    return re.sub(r"\b(" + "|".join(SHELLS) + r")\b", lambda found: SHELLS[found[1]], text)


def _imports(code: str, trees: dict[str, ast.Module]) -> str:
    """What the code speaks of, from where the async modules have it."""
    tree = ast.parse(code)
    used = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    used -= {each.name for each in tree.body if isinstance(each, ast.ClassDef)}
    lines = ["from qo.client.shell import Shell", "from typing import TYPE_CHECKING"]
    by_hand = sorted(used & set(SHELLS.values()))
    known = {name: line for file, each in trees.items() for name, line in _names(file, each)}
    lines += [known[name] for name in sorted(used & known.keys())]
    lines += ["", "if TYPE_CHECKING:", f"    from qo.client.sync import {', '.join(by_hand)}"]
    return "\n".join(lines)


def _names(file: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    for each in tree.body:
        match each:
            case ast.ImportFrom(module=str(module)):
                for name in each.names:
                    yield name.asname or name.name, f"from {module} import {name.name}"
            case ast.ClassDef(name=name):
                yield name, f"from qo.client.{file} import {name}"
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name, f"from qo.client.{file} import {name}"
            case _:
                pass


def _formatted(code: str) -> str:
    for command in (["check", "--fix", "--quiet", "--exit-zero", "--select", "I,F401"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"]
        code = subprocess.run(ruff, input=code, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return code


if __name__ == "__main__":
    TARGET.write_text(generated())
