"""The swarm server. See `docs/architecture.md` for the map; `wiring.py` is the only file that knows every component."""

__version__ = "0.1.0"
