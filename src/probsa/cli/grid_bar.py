"""The progress bar of a grid; a module of its own, as other commands need nothing of benchmarks."""

from collections.abc import Mapping

from ..benchmark import Cell, Watch
from ..jobs import TaskOutcome
from .terminal import Bar


class GridBar(Bar, Watch):
    """A progress bar over the cells of a grid, with the cells that are being trained."""

    cells = done = 0
    cell = ""

    def grid(self, *, cells: int, done: int) -> None:
        self.cells = cells
        self.done = done
        self.tenths = done * 10 // cells
        self.update(total=cells)
        self._show()
        if done:
            self.note(f"{done} of {cells} cells are done already")

    def begin(self, cell: Cell) -> None:
        self.cell = cell.name
        self._show()

    def epoch(self, row: Mapping[str, object]) -> None:
        self._show(f"epoch {row['epoch']}")

    def settled(self, cells: int) -> None:
        self.done = cells
        self._show()
        self.tenth(cells, self.cells, f"cells {cells}/{self.cells}")

    def end(self, cell: Cell, outcome: TaskOutcome) -> None:
        if outcome.status == "failed" and not outcome.kept:
            self.note(f"{outcome.name}: {outcome.reason}")

    def _show(self, epoch: str = "") -> None:
        text = f"{self.done}/{self.cells} {self.cell} {epoch}".rstrip()
        self.update(completed=self.done, text=text)
