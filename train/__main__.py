"""Entry point of `python -m train`."""

import os
import sys

from train.commands.main import main

status = main()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # Threads of torch's process group can outlive it, and would abort an interpreter that shuts
    # down in the normal way.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
sys.exit(status)
