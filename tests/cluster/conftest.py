"""What all tests of real engines need."""

import os

# Each process of tests starts a Ray of its own; by default it joins one that another process has started here.
os.environ["RAY_ADDRESS"] = "local"
