"""What training, notebooks and generation survive: kills, full disks, moved clocks, long runs.

    python -m experiments.faults --kills 50 --stops 12 --tokens 100000

Every run of training ends with the same bits as one that nothing happened to, or says why not; a
file that is there is whole; a notebook is the old one or the new one, and no kernel stays. A soak
writes tokens through the ring of a windowed cache and counts programs that were compiled and
memory.
"""

import argparse
import ctypes
import datetime
import functools
import json
import os
import random
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import nbformat
import numpy as np

from experiments.shared import once, provenance
from mha_book.models import smollm2
from mha_book.multihead.parameters import init_multi_head
from mha_book.storage import load_arrays, seal, write_atomic

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "tests" / "data" / "faults.json"
TRAIN = (sys.executable, "-m", "tests.experiments.training_run")
LARGE = ("--rows", "60000", "--every", "1")  # 17 MB, written after each step: kills meet writes
WORK = ROOT / "_build" / "experiments" / "faults"
REFRESH = ROOT / "book" / "_tools" / "refresh.py"
YEAR = 365.25 * 86400


class Training(NamedTuple):
    """A run that is done again and again, and what came out where nothing happened to it.

    Args:
        folder: where its checkpoints are.
        steps: how many steps it has.
        wanted: its arrays at the end.
        seconds: how long it took.
    """

    folder: Path
    steps: int
    wanted: dict[str, bytes]
    seconds: float

    @classmethod
    def undisturbed(cls, folder: Path, steps: int) -> "Training":
        """Train twice: the first process compiles, the second finds that in a cache."""
        training = cls(folder, steps, {}, 0.0)
        assert training.start(folder / "compiled").wait() == 0
        began = time.monotonic()
        assert training.start(folder / "whole").wait() == 0
        wanted = bits(folder / "compiled")
        assert wanted == bits(folder / "whole")
        return training._replace(wanted=wanted, seconds=time.monotonic() - began)

    def start(self, checkpoint: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a process that trains, and goes on from the checkpoint if there is one."""
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        command = [*TRAIN, str(checkpoint), *LARGE, "--steps", str(self.steps), *arguments]
        options = {"stdout": subprocess.DEVNULL, "env": {**cache, **os.environ}, **options}
        return subprocess.Popen(command, cwd=ROOT, text=True, **options)


def bits(checkpoint: Path) -> dict[str, bytes]:
    """The arrays of a checkpoint, which is whole."""
    return {name: array.tobytes() for name, array in load_arrays(checkpoint)[0].items()}


def traces(path: Path) -> tuple[Any, set[Path]]:
    """What shows from outside how far a process came: its checkpoint, and files half-written."""
    kept = path.stat().st_mtime_ns if path.exists() else None
    return kept, {*path.parent.glob(f"{path.name}.*.partial")}


def killed(training: Training, kills: int, seed: int) -> dict[str, int]:
    """Kill training at random moments of its life, so many times; each run ends as the whole did.

    A process that is killed has kept no checkpoint of its own yet (it starts, reads, compiles or
    makes its first steps), or it is between two, or it is writing one: a partial file stays. A
    write is short: every second kill waits, from its random moment on, for the next one to begin.
    """
    draw = random.Random(seed)
    phases = ("before_its_first_checkpoint", "between_checkpoints", "in_a_write")
    sums = ("kills", *phases, "runs", "checkpoints_read", "none_to_read", "differing")
    counts = dict.fromkeys(sums, 0)
    while counts["kills"] < kills:
        path = training.folder / f"run-{counts['runs']}"
        for _ in range(6):
            kept, partial = traces(path)
            run = training.start(path)
            try:
                assert run.wait(draw.uniform(0, training.seconds)) == 0
                break
            except subprocess.TimeoutExpired:
                if counts["kills"] % 2:
                    while run.poll() is None and traces(path)[1] == partial:
                        time.sleep(0.001)
                    time.sleep(draw.uniform(0, 0.02))
                run.kill()
                if run.wait() == 0:  # it was done before its next write came
                    break
                assert run.returncode == -signal.SIGKILL
            counts["kills"] += 1
            kept_now, partial_now = traces(path)
            counts[phases[2 if partial_now > partial else kept_now != kept]] += 1
            if path.exists():
                bits(path)
            counts["checkpoints_read" if path.exists() else "none_to_read"] += 1
        else:
            assert training.start(path).wait() == 0
        counts["runs"] += 1
        counts["differing"] += bits(path) != training.wanted
    return counts


def clock_moved(training: Training) -> dict[str, Any]:
    """Kill training after a checkpoint; go on in another year than the one that it was written in.

    The process that goes on lives a year earlier than it is, or later, and the time of the file
    is a year off to the other side.
    """
    found = {}
    for name, back in (("set_back", YEAR), ("set_ahead", -YEAR)):
        path = training.folder / f"clock-{name}"
        run = training.start(path)
        while not path.exists():
            time.sleep(0.01)
        run.kill()
        run.wait()
        os.utime(path, (time.time() + back,) * 2)
        status = training.start(path, f"--clock-back={back}").wait()
        said = load_arrays(path)[1]["provenance"]["date"]
        began = datetime.datetime.now(datetime.UTC)
        days = (began - datetime.datetime.fromisoformat(said)).total_seconds() / 86400
        found[name] = {
            "status": status, "days_back": round(days), "same_bits": bits(path) == training.wanted
        }  # fmt: skip
    return found


def full_disk(training: Training) -> dict[str, Any]:
    """Train where there is room for one checkpoint and not for the next beside it.

    The first one stays whole; with room, the run goes on from it.
    """
    place = training.folder / "small"
    place.mkdir()
    size = (training.folder / "whole").stat().st_size
    mount = ["mount", "-t", "tmpfs", "-o", f"size={4 * size}", "tmpfs", str(place)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        filler = place / "filler"
        if is_mounted:
            filler.write_bytes(bytes(4 * size - size * 3 // 2))
            run = training.start(place / "run", stderr=subprocess.PIPE)
        else:  # no right to mount: the largest file of the process is smaller than a checkpoint
            run = training.start(place / "run", stderr=subprocess.PIPE, preexec_fn=small_files)
        said = run.communicate()[1]
        filler.unlink(missing_ok=True)
        left = sorted(path.name for path in place.iterdir())
        reached = None
        if (place / "run").exists():
            reached = int(load_arrays(place / "run")[0]["state.step"][0])
        again = training.start(place / "run").wait()
        return {
            "kind": "tmpfs" if is_mounted else "limit of a file's size",
            "status": run.returncode,
            "said": said.strip().splitlines()[-1].split("/")[0][:80],
            "left_behind": left,
            "step_of_the_checkpoint_left": reached,
            "resumed_to_the_same_bits": again == 0 and bits(place / "run") == training.wanted,
        }
    finally:
        if is_mounted:
            subprocess.run(["umount", str(place)], check=True)


def small_files() -> None:
    """Let this process write no file of more than 8 KB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def read_only(training: Training) -> dict[str, Any]:
    """Train into a folder that no file can be made in (what is no folder, where root writes)."""
    place = training.folder / "closed"
    if os.geteuid():
        place.mkdir(mode=0o555)
    else:
        place.write_text("")  # root writes into every folder
    run = training.start(place / "run", stderr=subprocess.PIPE)
    said = run.communicate()[1]
    return {"status": run.returncode, "said": said.strip().splitlines()[-1].partition(":")[0]}


def two_writers(training: Training) -> dict[str, Any]:
    """Two processes train the same run into one file."""
    path = training.folder / "shared"
    runs = [training.start(path) for _ in range(2)]
    statuses = [run.wait() for run in runs]
    return {"statuses": statuses, "same_bits": bits(path) == training.wanted}


def soak(tokens: int, window: int = 32) -> dict[str, Any]:
    """Write so many tokens through the ring of a windowed cache."""
    config = smollm2.CONFIG._replace(
        num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, d_model=16, vocab_size=97
    )
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape) * 0.3, jnp.float32)

    layers = tuple(
        smollm2.SmolLM2Layer(
            jnp.ones(16), init_multi_head(number, 16, 4, num_kv_heads=2), jnp.ones(16),
            draw(16, 24), draw(16, 24), draw(24, 16),
        )
        for number in range(2)
    )  # fmt: skip
    params = smollm2.SmolLM2Params(draw(97, 16), layers, jnp.ones(16))
    caches = smollm2.init_caches(2, window, window=window, config=config)

    def write(params: Any, token: Any, caches: Any, key: Any) -> Any:
        logits, caches = smollm2.decode_step(params, token, caches, config=config)
        return jax.random.categorical(key, logits).astype(jnp.int32), logits, caches

    step = jax.jit(write, donate_argnums=2)
    token, programs, memory = jnp.array([0, 1], jnp.int32), [], []
    began = time.monotonic()
    finite = True
    for number in range(tokens):
        token, logits, caches = step(params, token, caches, jax.random.key(number))
        if number in (tokens // 10, tokens // 2, tokens - 1):
            finite = finite and bool(jnp.isfinite(logits).all())
            programs.append(step._cache_size())
            memory.append(resident())
    return {
        "tokens": tokens, "window": window, "programs": programs, "resident_MB": memory,
        "growth_MB": round(memory[-1] - memory[0], 1), "finite": finite,
        "positions_reached": int(caches[0].lengths[0]),
        "tokens_per_second": round(tokens / (time.monotonic() - began)),
    }  # fmt: skip


def resident() -> float:
    """The memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 1e6, 1)


def refreshed(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Stop the refreshing of notebooks at random moments, by signals of three kinds.

    Two small notebooks are executed; all chapters, which were untidied, are normalised. After each
    stop a notebook is byte for byte the old one or the new one, and no process is left of those
    that were started, though orphans have a parent here (as under systemd) and are not init's.
    """
    adopt = functools.partial(ctypes.CDLL(None).prctl, 36)  # PR_SET_CHILD_SUBREAPER
    adopt(1, 0, 0, 0)
    draw = random.Random(seed)
    found = {}
    for way, options in (("executed", []), ("normalised", ["--normalise"])):
        book = folder / way / "book"
        (book / "_tools").mkdir(parents=True)
        shutil.copy(REFRESH, book / "_tools")
        command = [sys.executable, str(book / "_tools" / REFRESH.name), *options]
        old = small_notebooks() if way == "executed" else untidy_chapters()

        def put(book: Path = book, old: dict[str, bytes] = old) -> None:
            for name, content in old.items():
                (book / name).write_bytes(content)

        def content(book: Path = book, old: dict[str, bytes] = old) -> dict[str, bytes]:
            return {name: (book / name).read_bytes() for name in old}

        put()
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds, new = time.monotonic() - began, content()
        assert not {*old.items()} & {*new.items()}
        counts: dict[str, Any] = {
            "kills": 0, "by_signal": {}, "with_a_kernel": 0, "partial_files": 0,
            "notebooks": len(old), "new_after_a_kill": 0, "neither_old_nor_new": 0,
            "processes_left": 0, "finished_all_the_same": 0, "did_not_end": 0,
        }  # fmt: skip
        put()
        while counts["kills"] < kills:
            mark = secrets.token_hex(8)
            run = subprocess.Popen(
                command, env={**os.environ, "MHA_BOOK_MARK": mark},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                assert run.wait(draw.uniform(0, seconds)) == 0
            except subprocess.TimeoutExpired:
                number = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[counts["kills"] % 3]
                counts["with_a_kernel"] += len(processes(mark)) > 1
                run.send_signal(number)
                try:
                    # Python drops an interrupt that meets some of its callbacks: it runs on.
                    counts["finished_all_the_same"] += run.wait(60 + 4 * seconds) == 0
                except subprocess.TimeoutExpired:
                    run.kill()
                    run.wait()
                    counts["did_not_end"] += 1
                counts["kills"] += 1
                counts["by_signal"].setdefault(number.name, 0)
                counts["by_signal"][number.name] += 1
                counts["processes_left"] += len(outlive(mark))
            for name, text in content().items():
                counts["new_after_a_kill"] += text == new[name]
                counts["neither_old_nor_new"] += text not in (old[name], new[name])
            if content() == new:
                put()
        counts["partial_files"] = len([*book.glob("*.partial")])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        counts["finished_at_last"] = content() == new
        found[way] = counts
    adopt(0, 0, 0, 0)
    return found


def small_notebooks() -> dict[str, bytes]:
    """Two notebooks that take a second each, as they are before they were ever run."""
    cells = (
        "import time\ntime.sleep(0.4)",
        "print('a line\\n' * 20_000)",
        "time.sleep(0.4)\n6 * 7",
    )
    notebooks = {}
    for name in ("first", "second"):
        new = [nbformat.v4.new_code_cell(f"# {name}\n{cell}", id=f"cell-{n}")
               for n, cell in enumerate(cells)]  # fmt: skip
        notebooks[f"{name}.ipynb"] = nbformat.writes(nbformat.v4.new_notebook(cells=new)).encode()
    return notebooks


def untidy_chapters() -> dict[str, bytes]:
    """All chapters, with a word in each that normalising takes out."""
    untidy = {}
    for path in sorted((ROOT / "book").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf8"))
        notebook["metadata"]["untidy"] = True
        untidy[path.name] = json.dumps(notebook).encode()
    return untidy


def processes(mark: str) -> set[int]:
    """The processes that have inherited a mark in their environment, dead ones left out."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except OSError:  # it has just ended, or is another user's
            pass
    return found


def outlive(mark: str, seconds: float = 10) -> set[int]:
    """The processes with a mark that are still there after so long; they are ended."""
    end = time.monotonic() + seconds
    while (left := processes(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    for number in left:
        os.kill(number, signal.SIGKILL)
    return left


def main(given: list[str] | None = None) -> dict[str, Any]:
    """Run everything that the command line asks for, and store what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=14, help="of the run that is killed")
    parser.add_argument("--stops", type=int, default=12, help="of each way to refresh notebooks")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=WORK, help="where parts are kept, to go on")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args(given)
    folder = Path(tempfile.mkdtemp())
    try:
        training = Training.undisturbed(folder, options.steps)
        parts: dict[str, Callable[[], Any]] = {
            "killed": lambda: killed(training, options.kills, options.seed),
            "notebooks": lambda: refreshed(folder / "notebooks", options.stops, options.seed),
            "two_writers": lambda: two_writers(training),
            "read_only": lambda: read_only(training),
            "full_disk": lambda: full_disk(training),
            "clock_moved": lambda: clock_moved(training),
            "soak": lambda: soak(options.tokens),
        }
        sizes = [options.steps, options.kills, options.stops, options.tokens, options.seed]
        found = {}
        for name, part in parts.items():
            found[name] = once(options.work / f"{name}.json", sizes, part)
            print(name, found[name], flush=True)
    finally:
        shutil.rmtree(folder)
    document = seal({"provenance": provenance(seeds={"kills": options.seed}), **found})
    write_atomic(options.output, (json.dumps(document, indent=1) + "\n").encode())
    return document


if __name__ == "__main__":
    main()
