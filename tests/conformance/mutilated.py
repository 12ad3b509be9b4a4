"""Wrong attentions made from the text of a right one, which knows nothing of the catalog."""

import numpy as np

RIGHT = """
def attention(q, k, v, mask=None, causal=False, window=None, segments=None):
    batch, n_heads, length, width = q.shape
    groups = n_heads // k.shape[1]
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    scores = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(width)
    i, j = np.arange(length)[:, None], np.arange(k.shape[2])[None]
    if causal:
        scores = np.where(j <= i + (k.shape[2] - length), scores, -np.inf)
    if window is not None:
        scores = np.where(i - j < window, scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    if segments is not None:
        scores = np.where(segments[:, None, :, None] == segments[:, None, None], scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = powers.sum(axis=-1, keepdims=True)
    weights = powers / np.where(total == 0, 1, total)
    return np.einsum("bhij,bhjd->bhid", weights, v)
"""
POWERS = "np.exp(scores - np.where(np.isfinite(top), top, 0))"
VALUES = "return np.einsum('bhij,bhjd->bhid', powers, v)"
CHANGES = [
    ("scale-missing", " / np.sqrt(width)", ""),
    ("scale-no-root", "/ np.sqrt(width)", "/ width"),
    ("scale-d-model", "/ np.sqrt(width)", "/ np.sqrt(n_heads * width)"),
    ("scale-heads", "/ np.sqrt(width)", "/ np.sqrt(n_heads)"),
    ("scale-multiplied", "/ np.sqrt(width)", "* np.sqrt(width)"),
    ("scale-fourth-root", "/ np.sqrt(width)", "/ np.sqrt(np.sqrt(width))"),
    ("softmax-over-queries", "axis=-1, keepdims", "axis=-2, keepdims"),
    ("softmax-over-heads", "axis=-1, keepdims", "axis=1, keepdims"),
    ("softmax-over-heads-and-keys", "axis=-1, keepdims", "axis=(1, 3), keepdims"),
    ("softmax-unstable", POWERS, "np.exp(scores)"),
    ("softmax-missing", POWERS, f"np.where(np.isfinite(scores), scores, 0); {VALUES}"),
    (
        "kv-heads-tiled",
        "k, v = np.repeat",
        "k, v = (np.tile(x, (1, groups, 1, 1)) for x in (k, v)); _ = np.repeat",
    ),
    ("kv-values-tiled", "np.repeat(v, groups, axis=1)", "np.tile(v, (1, groups, 1, 1))"),
    ("causal-strict", "j <= i", "j < i"),
    ("causal-one-ahead", "j <= i", "j <= 1 + i"),
    ("causal-reversed", "j <= i", "j >= i"),
    ("causal-top-left", " + (k.shape[2] - length)", ""),
    ("causal-ignored", "if causal:", "if False:"),
    ("window-one-more", "i - j < window", "i - j <= window"),
    ("window-one-less", "i - j < window", "i - j < window - 1"),
    ("window-inverted", "i - j < window", "i - j >= window"),
    ("mask-inverted", "np.where(mask, scores, -np.inf)", "np.where(mask, -np.inf, scores)"),
    ("mask-transposed", "np.where(mask,", "np.where(mask.swapaxes(2, 3),"),
    ("mask-first-sequence", "np.where(mask,", "np.where(mask[0],"),
    ("hidden-scores-zero", "np.where(mask, scores, -np.inf)", "np.where(mask, scores, -1e-9)"),
    ("mask-added-as-numbers", "np.where(mask, scores, -np.inf)", "scores + mask"),
    ("mask-ignored", "if mask is not None", "if mask is not None and False"),
    ("documents-leak", "if segments is not None", "if False"),
    ("documents-see-earlier", "None] == segments", "None] >= segments"),
    ("keys-values-exchanged", "groups = ", "k, v = v, k; groups = "),
    ("values-are-keys", 'bhjd->bhid", weights, v', 'bhjd->bhid", weights, k'),
    ("weights-transposed", "bhij,bhjd->bhid", "bhji,bhjd->bhid"),
    (
        "heads-averaged",
        "return",
        "weights = weights.mean(1, keepdims=True).repeat(n_heads, 1); return",
    ),
    ("weights-do-not-sum", POWERS, f"np.exp(scores); {VALUES}"),
    (
        "softmax-twice",
        "return",
        "weights = np.exp(weights); weights /= weights.sum(-1, keepdims=True); return",
    ),
    ("empty-row-nan", "np.where(total == 0, 1, total)", "total"),
    (
        "first-sequence-for-all",
        "groups = ",
        "k, v = k[:1].repeat(batch, 0), v[:1].repeat(batch, 0); groups = ",
    ),
    ("dropout-in-evaluation", "return", "weights *= np.random.rand(*weights.shape) > 0.1; return"),
    ("argmax", "return", "weights = np.eye(weights.shape[-1])[scores.argmax(-1)]; return"),
]


def mutilated(*changes):
    """The right attention with some texts changed."""
    source = RIGHT
    for _, old, new in changes:
        assert old in source
        source = source.replace(old, new)
    scope = {"np": np}
    exec(source, scope)
    return scope["attention"]
