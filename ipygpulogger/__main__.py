"""Run the command line by ``python -m ipygpulogger``, where the console script is not on the path."""

import sys

from .cli import main

sys.exit(main())
