"""What was measured, line by line, against LangGraph and the bars; as Markdown or as a table in the terminal."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.timing import Timings

__all__ = ["Line", "Report", "write_between_markers"]

_HEADINGS: Final = ("What", "Where", "clew", "LangGraph", "Measured", "Bar", "")
_BEGIN, _END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"


@dataclass(frozen=True, slots=True)
class Line:
    """One measured thing. ``met`` is None where there is no bar."""

    what: str
    where: str
    ours: str
    theirs: str
    measured: str
    bar: str
    met: bool | None

    def cells(self) -> tuple[str, ...]:
        verdict = "" if self.met is None else "met" if self.met else "**missed**"
        return self.what, self.where, self.ours, self.theirs, self.measured, self.bar, verdict


class Report:
    """Collects the lines, and says each as it comes."""

    def __init__(self, *, judged: bool = True) -> None:
        """The bars hold at full sizes; with ``judged=False`` they are shown, and nothing is met or missed."""
        self._judged = judged
        self.lines: list[Line] = []
        self._started = time.perf_counter()

    def against(
        self,
        what: str,
        where: str,
        ours: Timings,
        theirs: Timings,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Both sides' times. ``at_most`` bounds ours over theirs; ``at_least`` is how much faster we are to be."""
        ratio = ours.median / theirs.median
        if at_least is not None or (at_most is None and ratio < 1):
            bar = "" if at_least is None else f"≥ {at_least:g} × as fast"
            met = None if at_least is None else 1 / ratio >= at_least
            self._add(Line(what, where, str(ours), str(theirs), f"{_factor(1 / ratio)} × as fast", bar, met))
        else:
            bar = "" if at_most is None else f"≤ {at_most:g} × the time"
            met = None if at_most is None else ratio <= at_most
            self._add(Line(what, where, str(ours), str(theirs), f"{_factor(ratio)} × the time", bar, met))

    def figure(
        self,
        what: str,
        where: str,
        measured: float,
        unit: str = "",
        *,
        ours: str = "",
        theirs: str = "",
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """A figure with its unit, and the bar that it is to stay under or over."""
        bar = f"≤ {at_most:g} {unit}" if at_most is not None else f"≥ {at_least:g} {unit}" if at_least else ""
        met = measured <= at_most if at_most is not None else measured >= at_least if at_least else None
        self._add(Line(what, where, ours, theirs, f"{_factor(measured)} {unit}".strip(), bar.strip(), met))

    def markdown(self) -> str:
        """The lines as a Markdown table."""
        rows = [_HEADINGS, tuple("---" for _ in _HEADINGS), *(line.cells() for line in self.lines)]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def show(self) -> None:
        """The lines as a table in the terminal."""
        table = Table(*_HEADINGS)
        for line in self.lines:
            table.add_row(*(cell.replace("**", "") for cell in line.cells()))
        Console(width=None if sys.stdout.isatty() else 180).print(table)

    def _add(self, line: Line) -> None:
        if not self._judged:
            line = replace(line, met=None)
        self.lines.append(line)
        print(f"{time.perf_counter() - self._started:5.0f} s  {'  '.join(filter(None, line.cells()))}", file=sys.stderr)


def write_between_markers(path: Path, text: str) -> None:
    """Put ``text`` between the markers of a Markdown file; the rest of it stays.

    Raises:
        ValueError: the markers are not there.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{path} has no {_BEGIN} … {_END}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
