"""Helpers that the tests of one folder share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
