"""What could not be measured, each sentence reported once in the life of the process."""

from __future__ import annotations


class Notes:
    """Sentences for the user that wait for the next record."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._waiting: list[str] = []

    def is_new(self, sentence: str) -> bool:
        """Return whether a sentence was never reported; from now on it counts as reported."""
        new = sentence not in self._told
        self._told.add(sentence)
        return new

    def add(self, sentence: str) -> None:
        """Keep a sentence for the next record, unless it was reported before."""
        if self.is_new(sentence):
            self._waiting.append(sentence)

    def take(self) -> tuple[str, ...]:
        """Return the sentences for the next record, and forget them."""
        waiting, self._waiting = tuple(self._waiting), []
        return waiting
