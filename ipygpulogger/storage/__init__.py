"""Records in files and in notebooks: one codec, the formats, the history of a session, the log."""
