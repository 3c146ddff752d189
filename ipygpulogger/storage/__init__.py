"""Records in files and in notebooks: one codec, the formats, the history of a session, the log.

=======  =====================================================================
decode   records from JSON, checked against the types of their fields
embed    a record as a notebook output embeds it
formats  the files that hold records, as plain values
log      a log, which gains a line of JSON with every cell; the records of a file
history  `History`: the records of a session, ranked, saved, loaded
=======  =====================================================================
"""
