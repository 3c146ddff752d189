"""A page of HTML as one reads it: its words and tables; and which tags and attributes made it."""

from html.parser import HTMLParser

UNCLOSED = {"meta", "th", "td", "tr"}  # the end tags of these are optional, or forbidden


class Reader(HTMLParser):
    """What a reader without styles has of a page, whose tags are closed in their order.

    Its `tables` have rows of cells, `headers` says of each cell of all of them whether it is a header.
    """

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.tables, self.headers, self.words, self.open = [], [], [], [], "", []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.open += [tag] if tag not in UNCLOSED else []
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
            self.headers.append([])
        if tag in ("th", "td"):
            self.tables[-1][-1].append("")
            self.headers[-1].append(tag == "th")

    def handle_endtag(self, tag):
        if tag not in UNCLOSED:
            assert self.open.pop() == tag

    def handle_data(self, data):
        data = data.replace("\N{NO-BREAK SPACE}", " ")
        if self.open[-1:] != ["style"]:
            self.words += data
        if "table" in self.open and self.tables[-1]:
            self.tables[-1][-1][-1] += data

    @property
    def rows(self):
        """Those of all tables."""
        return [row for table in self.tables for row in table]
