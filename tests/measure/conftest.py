"""The worker scripts stand alone and import each other by plain name; tests of their pure parts do the same."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "skillserver/workers/scripts"))
