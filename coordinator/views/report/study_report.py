"""Report of a study in one printable file, with its answer, chart and trials."""

from datetime import datetime

from markupsafe import Markup

from broadside.coordinator.core import formatting
from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.studies.study import Study
from broadside.coordinator.views.charts.study_charts import chart_of, draw_study
from broadside.coordinator.views.report.document import ChartPlace, Section
from broadside.coordinator.views.report.render import drawings, page
from broadside.coordinator.views.report.study_tables import study_state, study_tables
from broadside.exchange.messages import Message, UtcDatetime
from broadside.exchange.version import version_text


class StudyReport(Message):
    """Report of a study. Numbers are in ``study``.

    Attributes:
        headline: Answer of the study in one line.
        status: Status of the study.
        sections: Sections in order.
        generated_at: Time when it was generated.
        study: The study with its results.
    """

    headline: str
    status: str
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
    conclusion = study.conclusion
    scale = study.spec.spec.scale
    note = "" if scale == 1 else f" Rates are at real scale (the lab has the scale 1:{scale:g})."
    return StudyReport(
        headline="The study has no result yet." if conclusion is None else conclusion.sentence,
        status=study_state(study),
        sections=(
            Section(
                id="chart",
                title="Chart",
                paragraphs=(f"The measured trials.{note}",),
                charts=_charts(study),
            ),
            Section(
                id="trials",
                title="Measurements",
                paragraphs=("Each trial is a run with its own verdict and report.",),
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
        drawn = draw_study(name, study)
    except NoChart as error:
        return (ChartPlace(name=name, title="No chart", description=str(error)),)
    return (ChartPlace(name=name, title=drawn.figure.title, description=drawn.description),)


def study_html(report: StudyReport) -> str:
    """Return the HTML page of a study report."""

    def drawn(place: ChartPlace) -> Markup:
        try:
            figure = draw_study(place.name, report.study).figure
        except NoChart:
            return Markup()
        return drawings(figure, place.name)

    return page("study.html.j2", report=report, study=report.study, drawn=drawn)
