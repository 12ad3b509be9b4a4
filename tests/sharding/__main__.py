"""What is checked over eight devices of a CPU: ``python -m tests.sharding [--slow] [NAME …]``.

A process of its own, since the number of devices has to be asked for before the first array is
made. It writes a line of JSON for each check.
"""

import functools
import json
import sys
import time
import traceback
import warnings

import jax
import jaxtyping
from jax._src.interpreters import mlir

jaxtyping.install_import_hook("mha_book", "beartype.beartype")
warnings.simplefilter("error")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

mlir.make_ir_context = functools.cache(mlir.make_ir_context)  # as tests/conftest.py does

from tests.sharding.checks import chosen  # noqa: E402

wanted = [name for name in sys.argv[1:] if name != "--slow"]
for name, function in chosen("--slow" in sys.argv).items():
    if wanted and not any(part in name for part in wanted):
        continue
    start, complaint = time.process_time(), ""
    try:
        function()
    except Exception:
        complaint = traceback.format_exc(limit=-6)
    seconds = round(time.process_time() - start, 1)
    print(json.dumps({"name": name, "complaint": complaint, "seconds": seconds}), flush=True)
