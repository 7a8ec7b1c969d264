STUDY ?= tiny
CORES ?= 2
PYTHON ?= python3
VENV ?= .venv
READY := $(VENV)/.ready
# Rules call `python`: the environment's comes first.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# mkdocs-material tells of its successor at every build.
export NO_MKDOCS_2_WARNING := 1
# Fonts and caches of matplotlib stay inside the environment; figures are the same bytes each time.
export MPLBACKEND := Agg

# Files of few but long tests: they begin first, or one of them would be left to the end.
LONG = tests/workflow tests/slurm
made = $(wildcard results/$(STUDY)/figures/*.svg results/$(STUDY)/tables/*.csv)

.DEFAULT_GOAL := help
.PHONY: help demo demo-docs test slow check format report docs mini-docs site picture acceptance bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 10

$(READY): envs/requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "DepthBench needs Python 3.11 or newer; name one with make PYTHON=...")'
	@echo "setting up $(VENV): takes a minute or more and at least 2.5 GB of disk"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --requirement envs/requirements.txt
	$(VENV)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

demo: $(READY) ## run the tiny study, from text to the HTML report
	@snakemake --cores $(CORES) --quiet rules --config study=tiny || \
	    { echo "not finished: make demo goes on from here, and loses nothing; docs/when-it-stops.md"; exit 1; }
	@$(MAKE) --no-print-directory report STUDY=tiny

report: $(READY) ## HTML report of what STUDY has made so far
	@test -n "$(made)" || { echo "results/$(STUDY) holds no figure or table yet: snakemake -c$(CORES) --config study=$(STUDY)"; exit 2; }
	@# Without targets Snakemake would ask for all of them and stop at the first that is not there.
	@snakemake --quiet host progress rules --config study=$(STUDY) partial=true --report results/$(STUDY)/report.html -- $(made)
	@echo "report: $(CURDIR)/results/$(STUDY)/report.html, figures and tables in its menu"

test: $(READY) ## tests, without the slow ones; then the kernels in Triton's interpreter
	python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder -m "not slow and not perf and not gpu and not interpret" \
	    $(LONG) $(filter-out $(LONG) tests/acceptance,$(patsubst %/,%,$(wildcard tests/*/)))
	TRITON_INTERPRET=1 python -m pytest --numprocesses 2 -m "interpret and not slow" tests/kernels tests/residuals

slow: $(READY) ## the slow tests
	python -m pytest --ignore tests/acceptance -m "slow and not interpret"
	TRITON_INTERPRET=1 python -m pytest -m "interpret and slow" tests/kernels tests/residuals

check: $(READY) ## style, types, imports, spelling, generated files
	ruff check
	ruff format --check
	snakefmt --check Snakefile workflow
	mypy
	lint-imports
	codespell
	python -m depthbench.docs --check
	mkdocs build --strict --site-dir $(VENV)/site
	snakemake --lint --config study=micro

format: $(READY) ## put code into the house style
	ruff check --fix
	ruff format
	snakefmt Snakefile workflow

docs: $(READY) ## write what is generated: the configuration's schema and page, the README's results
	python -m depthbench.docs

site: $(READY) ## build the documentation site into site/
	mkdocs build --strict --site-dir site
	@echo "site: $(CURDIR)/site/index.html; its search needs a server: python -m http.server --directory site"

# One run of the graph is an import and is exported, so that all kinds of rules are in it; any folder stands for its checkpoint.
picture: $(READY) ## draw the rule graph, docs/rules.svg; needs graphviz
	snakemake --rulegraph --quiet --config study=paper \
	  'studies={paper: {imported: {preln/400m-d1024-l24/lr2e-3-s0: docs}}}' \
	  -- all preflight results/paper/export/preln/400m-d1024-l24/lr2e-3-s0/config.json \
	  | python docs/rules.py | tred | dot -Tsvg > docs/rules.svg

demo-docs: demo ## take the demo's figure and losses into the documentation
	mkdir -p docs/demo
	cp results/tiny/figures/validation_loss.png results/tiny/tables/losses.csv docs/demo/
	@$(MAKE) --no-print-directory docs

mini-docs: $(READY) ## take the tables and figures of results/mini into docs/results-mini.md
	python -m depthbench.docs mini

acceptance: $(READY) ## what must hold after `make demo`, the commands of README.md among it
	python -m pytest tests/acceptance

bench: $(READY) ## ratios of this CPU: designs beside Pre-LN, our paths beside others; appends to kernels/benchmarks/results.csv
	rm -f $(VENV)/bench.jsonl
	python -m depthbench bench train --study tiny --shape 16,28 --out $(VENV)/bench.jsonl
	python -m depthbench bench cpu --out $(VENV)/bench.jsonl
	python kernels/benchmarks/analyses.py >> $(VENV)/bench.jsonl
	python kernels/benchmarks/append.py < $(VENV)/bench.jsonl

clean: ## remove what STUDY (tiny) has made; prepared data, other studies and the environment stay
	rm -rf $(if $(STUDY),results/$(STUDY),$(error STUDY is empty))
