"""Re-export the names of fastai's and ipyexperiments' ``utils``, for code that used them."""

from __future__ import annotations
