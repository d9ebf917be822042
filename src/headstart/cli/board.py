"""A table of runs while they are under way: the mean so far in every cell, and which one is being worked on."""

from collections.abc import Mapping

import rich.console
from rich.table import Table
from rich.text import Text

from headstart.progress import Place

_WAITING, _NAME = "·", 16


class Board:
    """The `progress.Board` of the command line; `planned` says how many results each cell will have."""

    def __init__(self, title: str, planned: Mapping[Place, int]) -> None:
        self._title, self._planned = title, planned
        self._values: dict[Place, list[float]] = {place: [] for place in planned}
        self._at: Place | None = None

    def start(self, place: Place) -> None:
        """Work in a cell begins."""
        self._at = place

    def add(self, place: Place, value: float) -> None:
        """A cell has one more result."""
        self._values[place].append(value)
        self._at = None if self._at == place else self._at

    def table(self, console: rich.console.Console) -> Table:
        """The table, with counts and whole names where the window is wide enough."""
        for counts, clip in ((True, False), (False, False), (False, True)):
            table = self._table(counts=counts, clip=clip, mark=">" if console.options.ascii_only else "▸")
            if console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width:
                break
        return table

    def _table(self, *, counts: bool, clip: bool, mark: str) -> Table:
        rows, columns = (list(dict.fromkeys(place[side] for place in self._planned)) for side in (0, 1))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(self._title, no_wrap=True)
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows:
            # what tells two folders apart may stand at either end
            name = f"{row[: _NAME // 2 - 1]}…{row[-_NAME // 2 :]}" if clip and len(row) > _NAME else row
            table.add_row(name, *(self._cell((row, column), counts, mark) for column in columns))
        return table

    def _cell(self, place: Place, counts: bool, mark: str) -> Text:
        values, wanted = self._values.get(place, []), self._planned.get(place, 0)
        figure = f"{100 * sum(values) / len(values):.1f}" if values else _WAITING if wanted else ""
        count = f" {len(values)}/{wanted}" if counts and wanted > 1 else ""
        if place == self._at:
            return Text(f"{mark} {figure}{count}", "bold cyan")
        # as wide as with the mark: a table that moves cannot be read
        return Text(f"  {figure}{count}", "" if len(values) == wanted else "dim")
