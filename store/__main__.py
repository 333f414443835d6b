"""`python -m store`: see `cli.py`."""

import sys

from store.cli import main

sys.exit(main())
