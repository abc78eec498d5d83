"""Sessions with one fault each. The simulator is worth something only if it finds every one of them."""

from __future__ import annotations

from tests.simulator.mutants_of_slabs import MUTANTS_OF_SLABS
from tests.simulator.mutants_of_time import MUTANTS_OF_TIME

MUTANTS = (*MUTANTS_OF_SLABS, *MUTANTS_OF_TIME)
