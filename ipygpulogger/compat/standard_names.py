"""The names of the standard library that the star import of `fastai.utils.mem` brought along.

Migrated code may rely on them. `copy` is left out: it was the function, and would hide the module.
"""

# ruff: noqa: F401, T100, UP035 - imported to be re-exported, deprecated names included

import abc
import bz2
import collections
import concurrent
import csv
import functools
import gc
import gzip
import hashlib
import html
import importlib
import inspect
import io
import itertools
import json
import math
import mimetypes
import numbers
import operator
import os
import pathlib
import pickle
import platform
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import typing
import warnings
import weakref
from abc import abstractmethod, abstractproperty
from argparse import ArgumentParser
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Iterable, Sized
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import InitVar, dataclass, field
from enum import Enum, IntEnum
from functools import partial, reduce
from io import BufferedWriter, BytesIO
from numbers import Number
from operator import attrgetter, itemgetter
from pathlib import Path
from pdb import set_trace
from types import SimpleNamespace
from typing import (
    Any,
    AnyStr,
    Callable,
    Collection,
    Dict,
    Hashable,
    Iterator,
    List,
    Mapping,
    NewType,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)
from warnings import warn

__all__ = [name for name in globals() if not name.startswith("_")]
