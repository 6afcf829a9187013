"""Excel workbook of a run, with charts, number formats and filters.

The first sheet shows the verdict.
"""

import io
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, assert_never

import numpy as np
import xlsxwriter

from broadside.coordinator.core.formatting import DIGITS, RATES, Unit, unit_of
from broadside.coordinator.core.measure.grid.second_table import Column
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.views.exports.run_tables import Tables
from broadside.coordinator.views.figure_rows import FigureRow, figure_rows

# Without the header row.
ROWS_MAX: Final = 1_048_575
# Number format by unit. Rates and sizes have thousands separators.
_FORMATS: Final = {
    "bit/s": "#,##0",
    "B": "#,##0",
    "ratio": "0.00%",
    "s": "0.000",
    "count": "#,##0",
}
_VERDICT_COLOURS: Final = {"pass": "#e3f3e9", "fail": "#fdeaea", "inconclusive": "#fdf1da"}
_OPTIONS: Final = {
    "in_memory": True,
    "nan_inf_to_errors": False,
    # Labels and findings can contain text from users.
    "strings_to_formulas": False,
    "strings_to_urls": False,
}
_CHART: Final = {"x_scale": 1.3, "y_scale": 1.1}


def number_format(unit: Unit, value: float, decimals: int = 2) -> str:
    """Return the Excel number format for a value.

    Args:
        unit: Base unit of the value.
        value: Value to show. Rates use the decimal unit that fits this value, times use seconds.
        decimals: Decimals of a percentage. Other values have four significant digits.
    """
    match unit:
        case Unit.RATE:
            name, size = unit_of(value, RATES)
            thousands = round(math.log10(size) / 3)
            return f"{_digits(value / size)}{',' * thousands}{_quoted(name)}"
        case Unit.TIME:
            return f"{_digits(value)}{_quoted('s')}"
        case Unit.RATIO:
            return f"0.{'0' * decimals}%" if decimals else "0%"
        case Unit.COUNT:
            return "#,##0"
        case Unit.CPU:
            return f"{_digits(value)}{_quoted(unit.value)}"
        case Unit.NUMBER:
            return _digits(value)
        case _:
            assert_never(unit)


def _digits(value: float) -> str:
    """Return a number format with at least four significant digits for the value."""
    before = math.floor(math.log10(abs(value))) + 1 if value else 1
    after = min(12, max(0, DIGITS - before))
    return "0." + "0" * after if after else "0"


def _quoted(unit: str) -> str:
    return f'" {unit}"'


class Workbook:
    """Builder for one workbook."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._book = xlsxwriter.Workbook(self._out, _OPTIONS)
        self._bold = self._book.add_format({"bold": True, "text_wrap": True, "valign": "top"})
        self._wrap = self._book.add_format({"text_wrap": True, "valign": "top"})
        self._title = self._book.add_format({"bold": True, "align": "right"})
        self._word = self._book.add_format({"align": "right"})
        self._instant = self._book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"})
        self._plain = self._book.add_format({"align": "left"})
        self._formats = {
            unit: self._book.add_format({"num_format": text}) for unit, text in _FORMATS.items()
        }

    def front(self, head: Mapping[str, Any], summary: RunSummary, tables: Tables) -> None:
        """Add the first sheet with verdict, metrics, findings and two charts.

        Args:
            head: Run metadata.
            summary: The run's summary.
            tables: The run's tables. The charts refer to their sheets.
        """
        sheet = self._book.add_worksheet("verdict")
        sheet.set_column(0, 0, 52)
        sheet.set_column(1, 3, 22)
        sheet.freeze_panes(1, 0)
        sheet.hide_gridlines(2)
        sheet.set_landscape()
        sheet.fit_to_pages(1, 0)
        said: dict[str, Any] = {"bold": True, "font_size": 18}
        said["bg_color"] = _VERDICT_COLOURS.get(summary.verdict.value, "#e9f1f8")
        sheet.write_string(0, 0, summary.verdict.value, self._book.add_format(said))
        row = 2
        for key, value in head.items():
            sheet.write_string(row, 0, key, self._bold)
            if key.endswith("_at"):
                at = datetime.fromisoformat(value).astimezone(UTC).replace(tzinfo=None)
                sheet.write_datetime(row, 1, at, self._instant)
            elif isinstance(value, float):
                sheet.write_number(row, 1, value, self._plain)
            else:
                sheet.write_string(row, 1, str(value))
            row += 1
        row += 1
        lab = summary.scale != 1
        titles = ("figure", "layer", "measured", *(("stands for",) if lab else ()))
        for place, title in enumerate(titles):
            sheet.write_string(row, place, title, self._title if place > 1 else self._bold)
        for figure in figure_rows(summary):
            row += 1
            sheet.write_string(row, 0, figure.words)
            sheet.write_string(row, 1, figure.layer)
            self._number(sheet, row, 2, figure.value, figure)
            if figure.stands_for is not None and figure.value is not None:
                self._number(sheet, row, 3, figure.value * summary.scale, figure)
        row += 2
        sheet.write_string(row, 0, "findings", self._bold)
        for finding in summary.findings:
            row += 1
            sheet.write_string(row, 0, finding.severity, self._wrap)
            next_step = f" Next: {finding.next_step}" if finding.next_step else ""
            sheet.merge_range(row, 1, row, 3, f"{finding.sentence}{next_step}", self._wrap)
            sheet.set_row(row, 15 * (1 + len(finding.sentence + next_step) // 66))
        self._chart(sheet, "F2", "column", tables, "bursts", RECEIVED.name, "Received, by burst")
        seconds = "received_payload_bits_per_second"
        self._chart(sheet, "F20", "line", tables, "seconds", seconds, "Received, by second")
        sheet.activate()

    def _number(self, sheet: Any, row: int, place: int, value: float | None, of: FigureRow) -> None:
        """Write a number in its base unit, with a format that shows the usual unit."""
        if value is None:
            sheet.write_string(row, place, of.measured, self._word)
            return
        text = number_format(of.unit, value, of.decimals)
        if text not in self._formats:
            self._formats[text] = self._book.add_format({"num_format": text, "align": "right"})
        sheet.write_number(row, place, value, self._formats[text])

    def table(self, name: str, columns: Any) -> None:
        """Add a sheet with a table.

        The header row contains the units. It stays visible and has filters.

        Args:
            name: Name of the sheet.
            columns: Columns of the table.
        """
        sheet = self._book.add_worksheet(name)
        sheet.freeze_panes(1, 1)
        for place, column in enumerate(columns):
            sheet.write_string(0, place, _titled(column), self._bold)
            sheet.set_column(place, place, 19 if column.values.dtype.kind in "MU" else 15)
            self._fill(sheet, place, column)
        if columns:
            sheet.autofilter(0, 0, len(columns[0].values), len(columns) - 1)

    def close(self) -> bytes:
        self._book.close()
        return self._out.getvalue()

    def _chart(
        self, sheet: Any, cell: str, kind: str, tables: Tables, table: str, name: str, title: str
    ) -> None:
        """Insert a chart of one column, unless all values of the column are unknown."""
        found = [at for at, column in enumerate(tables[table]) if column.name == name]
        if not found or not np.isfinite(tables[table][found[0]].values).any():
            return
        place, rows = found[0], len(tables[table][found[0]].values)
        chart = self._book.add_chart({"type": kind})
        chart.add_series({"name": title, "values": [table, 1, place, rows, place]})
        chart.set_title({"name": title, "name_font": {"size": 12}})
        chart.set_y_axis({"name": "Gbit/s, payload", "num_format": "0.00,,,", "min": 0})
        chart.set_x_axis({"name": table})
        chart.set_legend({"none": True})
        # An unknown value is not zero.
        chart.show_blanks_as("gap")
        sheet.insert_chart(cell, chart, _CHART)

    def _fill(self, sheet: Any, place: int, column: Column) -> None:
        """Write the known values of a column. Cells of unknown values stay empty."""
        values = column.values
        if values.dtype.kind == "M":
            for row, at in enumerate(values.astype("datetime64[ms]").tolist()):
                if at is not None:
                    sheet.write_datetime(row + 1, place, at, self._instant)
        elif values.dtype.kind == "U":
            for row, text in enumerate(values.tolist()):
                if text:
                    sheet.write_string(row + 1, place, text)
        else:
            form = self._formats.get(column.unit)
            for row, number in enumerate(values.tolist()):
                if number is not None and number == number:
                    sheet.write_number(row + 1, place, number, form)


def _titled(column: Column) -> str:
    if column.unit == "name":
        return column.name
    unit = column.unit if column.layer is None else f"{column.unit}, {column.layer}"
    return f"{column.name} [{unit}]"
