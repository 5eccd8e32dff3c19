"""Lets the scripts of this folder import Winnow's workers: they are run by Pythons that may have no Winnow."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "src/winnow/evaluation/peers/workers"))
