"""The names of `fastai.utils.ipython` and `ipyexperiments.utils.ipython`."""

from __future__ import annotations
