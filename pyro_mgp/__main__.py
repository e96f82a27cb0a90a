"""Entry point of `python -m pyro_mgp`, which runs the command line `pyro-mgp`."""

import sys

from pyro_mgp.cli import main

if __name__ == "__main__":
    sys.exit(main())
