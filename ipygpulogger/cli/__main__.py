"""Run the command line by ``python -m ipygpulogger.cli``, where the console script is not on the path."""

import sys

from .command_line import main

sys.exit(main())
