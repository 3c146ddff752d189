"""An index shows README.md alone: there its links lead to the repository. All else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

REPOSITORY = "https://github.com/ipygpulogger/ipygpulogger"  # as in pyproject.toml
text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
text = re.sub(r"(!\[[^]]*\])\((?!https:)", rf"\1({REPOSITORY}/raw/main/", text)
text = re.sub(r"\]\((?!https:|#)", rf"]({REPOSITORY}/blob/main/", text)
setup(long_description=text, long_description_content_type="text/markdown")
