"""Write the diagram of the states into the README, from the machine's table: `python -m tests.refresh_readme`."""

import re
from pathlib import Path

from pgelect._engine.diagram import mermaid

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- states -->", "<!-- /states -->"


def refreshed(text: str) -> str:
    """The text with the present diagram between its two markers; ValueError if they are not there exactly once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the text needs one {BEGIN} and after it one {END}, for the diagram of the states")
    block = f"{BEGIN}\n```mermaid\n{mermaid()}\n```\n{END}"
    return re.sub(f"{BEGIN}.*{END}", lambda _: block, text, flags=re.DOTALL)


def main() -> None:
    """Refresh the README in place."""
    README.write_text(refreshed(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
