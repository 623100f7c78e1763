"""`python -m fallbackd`."""

import sys

from fallbackd.app.main import main

if __name__ == "__main__":
    sys.exit(main())
