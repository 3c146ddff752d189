"""The IPython shell of this process."""

from __future__ import annotations

import sys
from typing import Any


def current_shell() -> Any:
    """Return the IPython shell of this process, or None; IPython is not imported to find out."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module else None
