"""fastai: `PeakMemMetric`, four columns in the progress table."""

from __future__ import annotations
