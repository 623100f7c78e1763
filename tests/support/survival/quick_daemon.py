"""`fallbackd`, ticking and tidying up every few tenths of a second."""

import sys

from fallbackd.app.main import main
from fallbackd.engine import ticker

ticker.PRUNE_EVERY = 2
defaults = ticker.run_ticker.__kwdefaults__
assert "every_s" in defaults
defaults["every_s"] = 0.3

if __name__ == "__main__":
    sys.exit(main())
