"""Help for testing programs that elect a leader: a throwaway PostgreSQL server."""

from pgelect.testing.postgres import Postgres, find_installed, installed_postgres, throwaway_postgres

__all__ = ["Postgres", "find_installed", "installed_postgres", "throwaway_postgres"]
