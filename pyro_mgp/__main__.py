"""`python -m pyro_mgp` is `pyro-mgp`."""

import sys

from pyro_mgp.cli import main

if __name__ == "__main__":
    sys.exit(main())
