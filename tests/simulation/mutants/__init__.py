"""Deliberate faults. Each one breaks a promise that the simulation checks, so the simulation has to find it.

A fault of the server's side stands for the same fault in the SQL: the fake server behaves as the SQL does, says the
contract suite.
"""

from tests.simulation.mutants.engine import ENGINE_MUTANTS
from tests.simulation.mutants.groups import GROUP_MUTANTS
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.server import SERVER_MUTANTS

MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in (*ENGINE_MUTANTS, *SERVER_MUTANTS, *GROUP_MUTANTS)}

__all__ = ["MUTANTS", "Mutant"]
