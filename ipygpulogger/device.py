"""One GPU from outside: how much memory it has, is free, is used; as fastai and ipyexperiments ask it."""

from __future__ import annotations
