"""``python -m pgelect``: the same as the command ``pgelect``."""

from pgelect.cli import main

if __name__ == "__main__":
    main()
