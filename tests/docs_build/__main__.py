"""Write the tables in ``docs/`` that tests compare with the code.

To run it, use ``python -m tests.docs_build``. It writes the order of precedence in ``verdict.md``
and the imports in ``architecture.md``. The difference should be reviewed, because a new import can
be a mistake.
"""

import re

from tests.docs_build.checks_page import precedence_rows
from tests.docs_build.constants_page import DOCS
from tests.docs_build.import_table import write_import_table


def write_precedence() -> None:
    """Replace the rows of the order of precedence."""
    page = DOCS / "verdict.md"
    lines = [f"| {number} | {' | '.join(row)} |" for number, row in enumerate(precedence_rows(), 1)]
    table = re.compile(r"(?:^\| \d \| .+\n)+", re.M)
    page.write_text(
        table.sub(lambda _: "\n".join(lines) + "\n", page.read_text("utf-8"), count=1),
        encoding="utf-8",
    )


if __name__ == "__main__":
    write_precedence()
    write_import_table()
