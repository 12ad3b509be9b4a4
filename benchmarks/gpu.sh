#!/bin/sh
# All that is measured on a GPU, by one command, on a machine with jax, numpy and jaxtyping alone
# (torch is measured where it is installed):
#
#     benchmarks/gpu.sh                      # results/*-gpu.json
#     benchmarks/gpu.sh --to FOLDER          # elsewhere
#     benchmarks/gpu.sh --quick --to FOLDER  # tiny sizes on any device: does all of it run?
#     benchmarks/gpu.sh attention decode     # some steps alone: contract attention attention-64
#                                            # decode layouts heads
#
# Each step has its own time limit (LIMIT seconds, 540) and log, and writes its result after every
# case, so that what was measured stays if the machine is taken away. A step that fails does not
# stop the others; the exit status is 1 if one did. A step that was cut short is quicker the second
# time: what JAX compiled is kept in CACHE. Where the files were copied without their
# history, say where they came from:
#     BENCHMARK_COMMIT=$(git describe --always --abbrev=40 --exclude '*' --dirty)
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
python=${PYTHON:-python3}
limit=${LIMIT:-540}
to=$here/results
quick=""
steps=""
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=--quick ;;
    --to) shift; to=$1 ;;
    -*) echo "error: unknown option $1" >&2; exit 2 ;;
    *) steps="$steps $1" ;;
  esac
  shift
done
steps=${steps:-contract attention attention-64 decode layouts heads}
mkdir -p "$to"
export PYTHONPATH="$root/src:$root${PYTHONPATH:+:$PYTHONPATH}"
# JAX takes memory as it needs it, and leaves some to torch.
export XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_PYTHON_CLIENT_MEM_FRACTION=0.8
export JAX_COMPILATION_CACHE_DIR="${CACHE:-${TMPDIR:-/tmp}/mha-book-compiled}"
cd "$root" || exit 2

if [ -z "$quick" ]; then
  platform=$("$python" -c 'import jax; print(jax.default_backend(), "-", jax.devices()[0].device_kind)')
  echo "device: $platform"
  case $platform in gpu*) ;; *) echo "error: JAX finds no GPU here (see --quick)" >&2; exit 2 ;; esac
fi

# What is measured: bfloat16, 16 heads, one sequence; decoding over 0.27, 0.54 and 1.07 GB.
attention="--dtype bfloat16 --heads 16 --lengths 4096 16384 --baseline attend --no-memory"
wide="--head-dim 128"
narrow="--head-dim 64"
decode="--dtype bfloat16 --lengths 8192 16384 32768 --no-model"
heads="--dtype bfloat16 --length 2048 --d-model 512 --choice"
layouts="--dtype bfloat16"
if [ -n "$quick" ]; then
  attention="--dtype bfloat16 --gpu-rows --baseline attend"
  wide="--head-dim 16"
  narrow="--head-dim 8"
  decode="--dtype bfloat16 --lengths 64 128 --no-model"
  heads="--dtype bfloat16 --choice"
  layouts=""
fi

run() {  # NAME COMMAND...: one step with its limit and its log
  name=$1
  shift
  start=$(date +%s)
  echo "== $name"
  if timeout "$limit" "$@" >"$to/$name.log" 2>&1; then state=done; else state=FAILED; failed=1; fi
  tail -n 3 "$to/$name.log"
  echo "== $name: $state in $(( $(date +%s) - start )) s, log $to/$name.log"
}

failed=0
for step in $steps; do
  out="--out $to/$step-gpu.json"
  # shellcheck disable=SC2086  # the options are words
  case $step in
    contract)
      chosen=""
      [ -n "$quick" ] && chosen="--implementation reference"
      run $step "$python" -m tests.attention.contract $chosen ;;
    attention) run $step "$python" benchmarks/attention.py $quick $attention $wide $out ;;
    attention-64) run $step "$python" benchmarks/attention.py $quick $attention $narrow $out ;;
    decode) run $step "$python" benchmarks/decode.py $quick $decode $out ;;
    layouts) run $step "$python" benchmarks/layouts.py $quick $layouts $out ;;
    heads) run $step "$python" benchmarks/heads.py $quick $heads $out ;;
    *) echo "error: no step is called $step" >&2; exit 2 ;;
  esac
done
exit $failed
