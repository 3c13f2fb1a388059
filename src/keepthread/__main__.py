"""Run the command: `python -m keepthread` is `keepthread`."""

import sys

from keepthread.apps.cli import main

if __name__ == "__main__":
    sys.exit(main())
