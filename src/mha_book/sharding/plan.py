r"""What a plan costs each device: bytes sent, bytes held, operations and how even they are.

Plain arithmetic, exact, for any sizes and any mesh; nothing is compiled and no array is made.
:func:`compiled_transfers` reads the same from a compiled program, and the tests hold the one to the
other.

A collective is counted by its *operand*, what a device gives to it, as compiled programs show it.
What then goes over the wires of a device follows for algorithms that send no more than they must:
all of a permuted operand, $(P-1)/P$ of an exchanged one, and $2 (P-1)/P$ of one that is summed over
$P$ devices (scattered, then gathered).
"""

import math
import re
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

from mha_book._checks import check, check_size, check_type
from mha_book.sharding.layer import METHODS
from mha_book.sharding.mesh import MeshSizes, check_divisible, kv_copies
from mha_book.sharding.placement import Balance, Placement, as_placement, balance
from mha_book.sharding.ring import ring_schedule

__all__ = ["PlanCost", "compiled_transfers", "plan_cost"]


class Transfer(NamedTuple):
    """Collectives of one kind, of one device."""

    kind: str  # "collective-permute", "all-to-all" or "all-reduce", as in XLA
    devices: int  # that take part in each
    calls: int  # how many
    operand_bytes: int  # of all of them together

    @property
    def sent_bytes(self) -> int:
        """What a device sends at least, rounded up."""
        part = Fraction(self.devices - 1, self.devices)
        factors = {"collective-permute": Fraction(1), "all-to-all": part, "all-reduce": 2 * part}
        return math.ceil(self.operand_bytes * factors[self.kind])


class PlanCost(NamedTuple):
    """What a plan costs one device.

    Args:
        forward: what attention sends forward.
        backward: what its gradient sends, beyond that.
        layer: what the projections of the layer send forward; empty without ``d_model``.
        operand_bytes: queries, keys, values and output, as they lie between two layers.
        arriving_bytes: keys and values of other devices that are there at the same time: twice
            those of one device around a ring, of all positions after an exchange.
        weight_bytes: of the layer; 0 without ``d_model``.
        attention_flops: products of scores and averages of the visible pairs, forward, of the
            device with most of them; the backward pass has 2.5 times as many.
        projection_flops: of the layer, forward; 0 without ``d_model``.
        balance: the visible pairs of each device of the ring in each of its steps.
        layer_backward: what the gradient of the projections sends, beyond ``backward``: that of the
            input, summed over the heads for the queries and again for keys and values, and those of
            the weights, summed over all devices that hold a copy; empty without ``d_model``.
    """

    forward: tuple[Transfer, ...]
    backward: tuple[Transfer, ...]
    layer: tuple[Transfer, ...]
    operand_bytes: int
    arriving_bytes: int
    weight_bytes: int
    attention_flops: int
    projection_flops: int
    balance: Balance
    layer_backward: tuple[Transfer, ...] = ()

    @property
    def sent_bytes(self) -> int:
        """What the device sends forward."""
        return sum(transfer.sent_bytes for transfer in (*self.forward, *self.layer))


def plan_cost(
    *,
    batch: int,
    num_heads: int,
    length: int,
    head_dim: int,
    num_kv_heads: int | None = None,
    value_dim: int | None = None,
    d_model: int | None = None,
    devices: MeshSizes,
    method: str = "ring",
    placement: str | Placement = "contiguous",
    lower: int | None = None,
    upper: int | None = None,
    bytes_per_element: int = 2,
) -> PlanCost:
    """Return what a plan costs each device.

    The sizes are ``B``, ``N``, ``T``, ``H``, ``K`` (``N`` where not given), ``C`` (``H`` where not
    given) and ``D``: with ``d_model`` the layer is counted with its projections, else attention
    alone. ``devices`` says how many divide sequences, heads and positions. Divided positions attend
    by the ``method`` "ring" or "all_to_all", in a ``placement`` as in
    :func:`~mha_book.sharding.ring.ring_attention`; ``lower`` and ``upper``, 0 for a causal mask,
    bound the visible ``j - i``. An element has 2 bytes in bfloat16; sums of gradients travel in 4
    at least.

    Example:
        >>> sizes = {"batch": 1, "num_heads": 32, "length": 2**20, "head_dim": 128, "upper": 0}
        >>> ring = MeshSizes(sequence=256)
        >>> all_heads = plan_cost(**sizes, devices=ring, placement="zigzag")
        >>> few_heads = plan_cost(**sizes, devices=ring, placement="zigzag", num_kv_heads=8)
        >>> all_heads.sent_bytes // few_heads.sent_bytes  # sharing heads helps a ring
        4
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    value_dim = head_dim if value_dim is None else value_dim
    named = {"batch": batch, "num_heads": num_heads, "length": length, "head_dim": head_dim}
    named |= {"num_kv_heads": num_kv_heads, "value_dim": value_dim}
    named |= {"bytes_per_element": bytes_per_element, "d_model": 1 if d_model is None else d_model}
    check_type(devices, "devices", MeshSizes, "that is MeshSizes(batch=…, heads=…, sequence=…)")
    named |= {f"devices.{name}": count for name, count in devices._asdict().items()}
    for name, size in named.items():
        check_size(size, name)
    check(method in METHODS, "method", f"one of {', '.join(METHODS)}", repr(method))
    divides = num_heads % num_kv_heads == 0
    check(divides, "num_kv_heads", f"a divisor of num_heads = {num_heads}", num_kv_heads)
    over_batch, over_heads, over_positions = devices
    check_divisible("batch", "the sequences (B)", batch, over_batch, "batch")
    check_divisible("length", "the positions (T)", length, over_positions, "sequence")
    copies = kv_copies(num_heads, num_kv_heads, over_heads, "heads")
    ring = as_placement(placement, length, over_positions)
    if lower is None and upper is None:
        ring = as_placement("contiguous", length, over_positions)

    rows, positions = batch // over_batch, length // over_positions
    heads, key_heads = num_heads // over_heads, max(num_kv_heads // over_heads, 1)
    number, wide = bytes_per_element, max(bytes_per_element, 4)
    kv_count = rows * key_heads * positions * (head_dim + value_dim)  # of keys and values
    own_count = rows * heads * positions * (head_dim + value_dim)  # of queries and output
    forward: tuple[Transfer, ...] = ()
    backward: tuple[Transfer, ...] = ()
    arriving = 0
    pairs = balance(ring, lower, upper)
    busiest = int(pairs.by_device.max())
    if over_positions > 1 and method == "ring":
        moves = len(ring_schedule(ring, lower, upper)) - 1
        if moves:
            once = moves * kv_count * number
            home = (moves + 1) * kv_count * wide  # sums of gradients travel, and home at the end
            send = Transfer("collective-permute", over_positions, 2 * moves, once)
            forward = (send,)
            backward = (send._replace(calls=4 * moves + 2, operand_bytes=once + home),)
            arriving = 2 * kv_count * number
    elif over_positions > 1:
        parts = over_heads * over_positions
        kv_copies(num_heads, num_kv_heads, parts, "heads × sequence")
        repeated = over_positions // key_heads if key_heads % over_positions else 1
        exchanged = repeated * kv_count + own_count
        forward = backward = (Transfer("all-to-all", over_positions, 4, exchanged * number),)
        arriving = (exchanged - rows * heads * positions * value_dim) * number
        busiest = -(-pairs.total // over_positions)  # all positions, of fewer heads

    weights = projections = 0
    layer: tuple[Transfer, ...] = ()
    layer_backward: tuple[Transfer, ...] = ()
    if d_model is not None:
        held = num_kv_heads if copies > 1 else key_heads  # key heads whose weights are held
        key_weights = d_model * held * (head_dim + value_dim)
        own = d_model * (heads * (head_dim + value_dim))
        if over_heads > 1:
            size = rows * positions * d_model * number
            layer = (Transfer("all-reduce", over_heads, 1, size),)
            layer_backward = (Transfer("all-reduce", over_heads, 2, 2 * size),)
        holders = over_batch * over_positions
        for sharing, count in (
            (holders, own),
            (holders * (over_heads if copies > 1 else 1), key_weights),
        ):
            if sharing > 1:
                layer_backward += (Transfer("all-reduce", sharing, 2, count * number),)
        weights = (own + key_weights) * number
        used = own + d_model * key_heads * (head_dim + value_dim)
        projections = 2 * rows * positions * used
    products = 2 * rows * heads * busiest * (head_dim + value_dim)
    return PlanCost(
        forward, backward, layer, (own_count + kv_count) * number, arriving, weights, products,
        projections, pairs, layer_backward,
    )  # fmt: skip


_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "f64": 8}
_RESULT = re.compile(r"^\s*(?:ROOT )?(%[\w.-]+) = (\w+)\[([\d,]*)\]", re.M)
_COLLECTIVE = re.compile(
    r" (collective-permute|all-to-all|all-reduce|all-gather|reduce-scatter)(?:-start)?\((.*)"
)
_ATTRIBUTES = re.compile(r"\), (?:channel_id|replica_groups|source_target_pairs|dimensions)=")


def compiled_transfers(text: str) -> dict[str, tuple[int, int]]:
    """Return the collectives of a compiled program, of one device.

    Args:
        text: the program, ``jax.jit(f).lower(…).compile().as_text()``; one without loops, since
            what stands in the body of a loop stands there once.

    Returns:
        For each kind how many there are, and the bytes of their operands. Several of one kind may
        be one instruction: a compiler combines what is ready at one time.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> compiled_transfers(jax.jit(lambda x: 2 * x).lower(jnp.ones(3)).compile().as_text())
        {}
    """
    sizes = {
        name: _BYTES.get(dtype, 0) * math.prod(int(n) for n in dims.split(",") if n)
        for name, dtype, dims in _RESULT.findall(text)
    }
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for kind, rest in _COLLECTIVE.findall(text):
        operands = re.findall(r"%[\w.-]+", _ATTRIBUTES.split(rest)[0])
        # An exchange may be written with one operand for each device.
        counts[kind] += 1 if kind == "all-to-all" else len(operands)
        totals[kind] += sum(sizes[name] for name in operands)
    return {kind: (counts[kind], totals[kind]) for kind in counts}
