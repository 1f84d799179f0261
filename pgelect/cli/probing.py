"""Ask a health endpoint once, as a probe does. Whatever goes wrong is an answer: not healthy, and why."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

_OK = 200
_LONGEST = 10_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What the process said of itself, or why it did not."""

    healthy: bool
    reason: str


def probe(url: str, timeout_s: float) -> Answer:
    """Ask ``url``, which begins with http:// or https://, directly and through no proxy. Never raises for an answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as response:
            return Answer(response.status == _OK, _reason(response.read(_LONGEST), response.status))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(healthy=False, reason=_reason(error.read(_LONGEST), error.code))
    except urllib.error.URLError as error:
        return Answer(healthy=False, reason=f"no answer from {url}: {error.reason}")
    except (OSError, HTTPException, ValueError) as error:
        return Answer(healthy=False, reason=f"no answer from {url}: {str(error) or type(error).__name__}")


def _reason(body: bytes, status: int) -> str:
    """Find the reason in the body, as far as it has one."""
    text = body.decode(errors="replace").strip()
    try:
        told: Any = json.loads(text)
    except ValueError:
        return text or f"HTTP status {status}"
    if isinstance(told, dict) and isinstance(told.get("reason"), str):
        return str(told["reason"])
    return text
