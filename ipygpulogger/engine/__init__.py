"""Measure a scope: read every counter when it opens and when it closes, and return what was used between."""
