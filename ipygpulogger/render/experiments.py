"""What an experiment says, in the words of ipyexperiments."""

from __future__ import annotations
