"""``python -m ipygpulogger.cli``: the console script where it is not on the path."""

import sys

from .commands import main

sys.exit(main())
