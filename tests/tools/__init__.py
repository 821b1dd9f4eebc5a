"""The scripts in tools/ import each other by bare name, and so do their tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
