"""Report of a study in one printable file, with its answer, chart and trials."""

from datetime import datetime
from typing import Final

from markupsafe import Markup

from broadside.coordinator.core import formatting
from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.studies.study import Study
from broadside.coordinator.views.charts import Theme
from broadside.coordinator.views.charts.study_charts import chart_of, draw_study
from broadside.coordinator.views.report.document import ChartPlace, Section
from broadside.coordinator.views.report.render import drawings, page
from broadside.coordinator.views.report.study_tables import stands, study_tables
from broadside.exchange.messages import Message, UtcDatetime
from broadside.exchange.version import version_text

# Height to add to the chart, because a study report has only one.
HIGHER_PX: Final = 100.0


class StudyReport(Message):
    """What a reader of a study is given; the figures are in ``study``."""

    headline: str
    stands: str
    sections: tuple[Section, ...]
    generated_at: UtcDatetime
    broadside_version: str
    study: Study


def build_study(study: Study, now: datetime) -> StudyReport:
    """Return the report of a study in its current state. Pure.

    Args:
        study: Study to report.
        now: Creation time of the report.
    """
    said = study.conclusion
    scale = study.spec.spec.scale
    lab = "" if scale == 1 else f" Rates are at real scale: the lab is at 1:{scale:g}."
    return StudyReport(
        headline=said.sentence if said is not None else "The study has no answer yet.",
        stands=stands(study),
        sections=(
            Section(
                id="chart",
                title="Chart",
                paragraphs=(f"Of the trials that were measured.{lab}",),
                charts=_charts(study),
            ),
            Section(
                id="trials",
                title="What was measured",
                paragraphs=("Each is a run with a verdict and a report of its own.",),
                tables=tuple(study_tables(study)),
            ),
            Section(
                id="runs",
                title="Runs",
                facts={
                    f"trial {result.index + 1}": result.run_id or formatting.UNKNOWN
                    for result in study.results
                },
            ),
        ),
        generated_at=now,
        broadside_version=version_text(),
        study=study,
    )


def _charts(study: Study) -> tuple[ChartPlace, ...]:
    name = chart_of(study)
    try:
        drawn = draw_study(name, study, Theme.LIGHT)
    except NoChart as error:
        return (ChartPlace(name=name, title="No chart", says=str(error)),)
    title = str(drawn.figure["layout"]["title"]["text"])
    return (ChartPlace(name=name, title=title, says=drawn.says),)


def study_html(report: StudyReport) -> str:
    """Return the HTML page of a study report."""

    def drawn(place: ChartPlace) -> Markup:
        try:
            figure = dict(draw_study(place.name, report.study, Theme.LIGHT).figure)
        except NoChart:
            return Markup()
        return drawings(figure, place.name, higher_px=HIGHER_PX)

    return page("study.html.j2", report=report, study=report.study, drawn=drawn)
