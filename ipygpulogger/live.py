"""A long cell while it runs: elapsed time, used and peak so far, in the display that becomes its report."""

from __future__ import annotations
