"""The README in parts: its fenced blocks, with the marker before each and the output after it."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DSN = '"postgresql://localhost/app"'
RECIPE = "recipe: "
BLOCK = re.compile(
    r"(?:^<!-- (?P<marker>[^\n]*) -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$"
    r"(?:\n\n^```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block, the marker before it and the output after it."""

    language: str
    code: str
    marker: str
    output: str | None
    line: int


BLOCKS = [
    Block(m["language"], m["code"], m["marker"] or "", m["output"], README.count("\n", 0, m.start("code")))
    for m in BLOCK.finditer(README)
]
PROGRAMS = [block for block in BLOCKS if block.language == "python" and not block.marker.startswith(RECIPE)]
RECIPES = {block.marker.removeprefix(RECIPE): block.code for block in BLOCKS if block.marker.startswith(RECIPE)}
