"""``python -m jaxccomp``."""

import sys

from jaxccomp.cli import main

if __name__ == "__main__":
    sys.exit(main.main())
