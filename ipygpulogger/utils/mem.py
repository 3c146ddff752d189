"""The names of `fastai.utils.mem` and `ipyexperiments.utils.mem`."""

from __future__ import annotations
