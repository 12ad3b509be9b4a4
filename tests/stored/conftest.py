"""The benchmarks are scripts: their modules are found beside them."""

import sys

from tests.benchmarks.paths import BENCHMARKS

sys.path.append(str(BENCHMARKS))
