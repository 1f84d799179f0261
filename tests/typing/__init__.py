"""Types as users see them: checked by mypy, never run."""
