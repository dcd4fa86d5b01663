# What people run by hand; `.ci/run` calls the same recipes' commands.

# Install everything.
sync:
    uv sync --compile-bytecode

# Unit tests of all packages.
unit:
    uv run pytest -n auto --dist loadfile packages

# Everything, with real servers on real sockets.
test:
    uv run pytest -n auto --dist loadfile

# Style, types, architecture.
lint:
    uv run ruff check
    uv run ruff format --check
    uv run pyright
    uv run lint-imports
    uv run cython-lint packages/ajet-merge/src

# Reformat.
format:
    uv run ruff check --fix
    uv run ruff format

# Write requirements.lock anew after a change of dependencies.
lock:
    uv lock
    uv export --quiet --all-packages --all-extras --no-emit-workspace --no-annotate --no-header -o requirements.lock

# Write the pages and pictures of docs/merge that are generated.
docs:
    uv run python docs/merge/figures.py
    uv run python docs/merge/api.py
