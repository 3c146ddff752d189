"""Hugging Face `Trainer`: an epoch's memory as logged metrics."""

from __future__ import annotations
