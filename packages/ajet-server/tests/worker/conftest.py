"""Makes `loopback` importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # whichever import mode pytest runs in
