"""Entry point of `python -m train`."""

import os
import sys

from train.commands.main import main

status = main()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # Threads of torch's process group can outlive it; an interpreter that ends in its own time may
    # be aborted by them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
sys.exit(status)
