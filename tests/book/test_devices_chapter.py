"""What the chapter on devices says of compiled programs and of machines."""

import pytest

from benchmarks.harness import compiled as compiled_for
from benchmarks.harness.published import CHIPS, COMPILED


def test_the_published_values_are_those_that_jax_and_xla_are_told():
    """Of TPUs what JAX's kernels ask for; of GPUs what their compiler is told."""
    tables = pytest.importorskip("jax._src.pallas.mosaic.tpu_info")
    known = {version.value for version in tables.ChipVersion}
    for name in (*COMPILED, "7x"):
        chip = CHIPS[name]
        if name in compiled_for.GPUS:
            facts = compiled_for.GPUS[name]
            assert (chip.cores, chip.cache) == (facts["core_count"], facts["l2_cache_size"])
            found = compiled_for.description(name)
            assert f"shared_memory_per_core: {chip.fast}\n" in found
            rates = [(chip.bytes_per_s, facts["memory_bandwidth"])]
        elif name in known:  # an older JAX has no TPU7x
            facts = tables.get_tpu_info_for_chip(tables.ChipVersion(name), 1)
            assert chip.fast == facts.vmem_capacity_bytes
            arrays, side = chip.unit.split(" arrays of ")
            assert int(side.split(" × ")[0]) == facts.mxu_column_size
            if hasattr(facts, "num_mxus"):  # JAX 0.10.0 does not say
                assert int(arrays) == chip.cores * facts.num_mxus
            each = chip.cores
            rates = [
                (chip.bytes_per_s, each * facts.mem_bw_bytes_per_second),
                (chip.flops_per_s, each * facts.bf16_ops_per_second),
            ]
        for ours, theirs in rates:  # rounded differently; of v5p JAX has an eighth less
            assert 0.99 < ours / theirs < 1.13


def test_a_bound_counts_each_byte_once_and_leaves_out_what_a_cache_may_keep():
    tpu, gpu = CHIPS["v6e"], CHIPS["h100"]
    assert tpu.least_bytes(10, 5, 3) == 21
    assert gpu.least_bytes(10, 5, 3) == 10  # all the rest may stay in its cache
    assert gpu.least_bytes(2**30, 2**30, 2**30) == 4 * 2**30 - 100 * 2**20
    assert round(gpu.corner) == 295
