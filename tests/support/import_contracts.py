"""Import contracts of our own: `pure` and `acyclic`.

`pure`: a module decides from plain data until its name says that it does I/O. Names are given by
role (`*.controller`), not one by one.
`acyclic`: no module imports itself through others, type hints included.
`make lint` runs both (`pyproject.toml`).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class PureContract(Contract):
    """No module may reach what does I/O, reads a clock or logs, unless its name allows it.

    Options:
        packages: their modules are checked.
        may_do_io: patterns of the names of modules that may; `*` matches dots too. A pattern that
            matches no module fails the contract: it is left from something that is gone.
        forbidden_modules: what the others may not reach, directly or through one another.
    """

    type_name = "pure"

    # The fields hold plain sets once the contract is read; their types say descriptors.
    packages = fields.SetField(subfield=fields.StringField())
    may_do_io = fields.SetField(subfield=fields.StringField())
    forbidden_modules = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find modules that reach a forbidden one although their name does not allow it."""
        forbidden = [name for name in self.forbidden_modules if name in graph.modules]  # type: ignore[attr-defined]  # fields are dynamic
        reaching = set().union(*(graph.find_downstream_modules(name) for name in forbidden))
        checked = {
            module
            for module in graph.modules
            if module.partition(".")[0] in self.packages  # type: ignore[operator]  # fields are dynamic
        }
        patterns = sorted(self.may_do_io)  # type: ignore[call-overload]  # fields are dynamic
        matched = {pattern: {m for m in checked if fnmatchcase(m, pattern)} for pattern in patterns}
        allowed = set().union(*matched.values())
        broken = {
            module: [
                chain
                for name in sorted(forbidden)
                if (chain := graph.find_shortest_chain(importer=module, imported=name))
            ][:1]
            for module in sorted((checked & reaching) - allowed)
        }
        idle = [pattern for pattern, found in matched.items() if not found & reaching]
        return ContractCheck(
            kept=not broken and not idle, metadata={"broken": broken, "idle": idle}
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each impure module with one way to what it may not reach."""
        metadata: dict[str, Any] = check.metadata
        for module, chains in metadata["broken"].items():
            output.print_error(f"{module} is not pure:", bold=True)
            for chain in chains:
                output.indent_cursor()
                output.print_error(" -> ".join(chain), bold=False)
        for pattern in metadata["idle"]:
            output.print_error(f"may_do_io names {pattern!r}: no module of that name does I/O")


class AcyclicContract(Contract):
    """No module imports itself through others.

    Options:
        packages: their modules are checked.
    """

    type_name = "acyclic"

    packages = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find one circle."""
        checked = {
            module
            for module in graph.modules
            if module.partition(".")[0] in self.packages  # type: ignore[operator]  # fields are dynamic
        }
        imports = {m: graph.find_modules_directly_imported_by(m) & checked for m in checked}
        circle: list[str] = []
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            circle = error.args[1]
        return ContractCheck(kept=not circle, metadata={"circle": circle})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the circle."""
        output.print_error(" <- ".join(check.metadata["circle"]), bold=False)
