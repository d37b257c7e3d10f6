"""Worker scripts import their siblings by plain name; so do their tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "skillserver/workers/scripts"))
