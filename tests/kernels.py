"""Kernels of notebooks, forked from one process that has imported what most notebooks import.

Of a notebook that computes little, starting Python and importing is most of the time. Run as a
program, this file serves kernels on a socket; run by Jupyter with a connection file it asks for
one, and lives as long as that.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from unittest import mock

IMPORTED = (
    "IPython", "ipykernel.kernelapp", "ipykernel.ipkernel", "matplotlib.pyplot",
    "matplotlib.backends.backend_agg", "myst_nb.ext.glue", "scipy.stats",
    "mha_book.exercises", "mha_book.plotting", "mha_book.conformance", "mha_book.models",
    "mha_book.notation", "mha_book.sharding", "mha_book.specialization", "mha_book.pruning",
)  # fmt: skip
ADDRESS = "MHA_BOOK_KERNELS"  # the variable that names the socket
AS_KERNELS = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}


def start() -> None:
    """Start the process that forks kernels, once for all workers, and say where it listens."""
    folder = tempfile.TemporaryDirectory(prefix="kernels")
    os.environ[ADDRESS] = f"{folder.name}/socket"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.environ[ADDRESS])
    listening.listen()
    run = [sys.executable, __file__, str(listening.fileno())]
    environment, fds = os.environ | AS_KERNELS, [listening.fileno()]
    server = subprocess.Popen(run, stdin=subprocess.PIPE, env=environment, pass_fds=fds)
    listening.close()
    atexit.register(lambda: (server.communicate(), folder.cleanup()))


def keep_models() -> None:
    """Read the trained weights once; what loads them in a kernel makes arrays of JAX of them."""
    import jax
    import numpy as np

    from mha_book.models import minilm, smollm2

    for module, name in ((minilm, "load_minilm"), (smollm2, "load_smollm2")):
        with mock.patch.object(module, "jnp", np), contextlib.suppress(ModuleNotFoundError):
            kept = getattr(module, name)()
            weights = jax.tree.map(np.ascontiguousarray, kept.params)
            load = functools.partial(jax.tree.map, jax.numpy.asarray, weights)
            setattr(module, name, lambda kept=kept, load=load: kept._replace(params=load()))


def serve(listening: socket.socket) -> None:
    """Import, then fork a kernel for every connection, until standard input ends."""
    sys.path.pop(0)  # the folder of this file
    for name in IMPORTED:
        importlib.import_module(name)
    keep_models()
    gc.freeze()
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
    while True:
        connection, _ = listening.accept()
        asked, files, _, _ = socket.recv_fds(connection, 2**20, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX has no thread yet, but warns
            child = os.fork()
        if child == 0:
            listening.close()
            for target, file in enumerate(files, 1):
                os.dup2(file, target)
            become_kernel(**json.loads(asked))
        for file in files:
            os.close(file)
        threading.Thread(target=watch, args=(child, connection), daemon=True).start()


def become_kernel(file: str, folder: str, environment: dict[str, str]) -> None:
    """Run a kernel in a forked process, as if Jupyter had started it."""
    import jax
    from ipykernel.kernelapp import launch_new_instance
    from jax._src.interpreters import mlir

    mlir.make_ir_context = functools.cache(mlir.make_ir_context)  # as tests/conftest.py does
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment, **AS_KERNELS, JPY_PARENT_PID=str(os.getppid()))
    is_plain = environment.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == "true"
    jax.config.update("jax_disable_most_optimizations", is_plain)  # read where JAX is imported
    sys.path.insert(0, "")
    sys.argv = ["ipykernel_launcher", "-f", file]
    launch_new_instance()
    os._exit(0)


def watch(child: int, connection: socket.socket) -> None:
    """Say when a kernel has ended; end it when nobody is there any more to be told."""

    def end_with_asker() -> None:
        while asked := connection.recv(1):
            os.kill(child, asked[0])
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    threading.Thread(target=end_with_asker, daemon=True).start()
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):  # ended, and not waited for
        connection.send(bytes([abs(os.waitstatus_to_exitcode(status))]))


def ask(address: str, file: str) -> int:
    """Ask for a kernel, hand on signals, and return how it ended."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    asked = {"file": file, "folder": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(connection, [json.dumps(asked).encode()], [1, 2])
    ended = connection.recv(1)
    return ended[0] if ended else 1


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(ask(*sys.argv[1:]))
    serve(socket.socket(fileno=int(sys.argv[1])))
