"""The token that a test's requests carry, so that a server's log names the job of each.

A token is the job's id and the seconds that the job may last: ``smoke-1.00000.00003.35``. It is
in the query of a URL, or in the password of an anonymous FTP login, where a device that translates
addresses and ports leaves it alone. It identifies and does not authorise: who may connect is
decided by the network.
"""

import math
import re
from dataclasses import dataclass
from typing import Final

from broadside.exchange.messages import Job

JOB_PATTERN: Final = r"[a-z0-9][a-z0-9-]{0,62}\.[0-9]{5,6}\.[0-9]{5,6}"
TOKEN_PATTERN: Final = rf"{JOB_PATTERN}\.[0-9]{{1,6}}"
_JOB: Final = re.compile(JOB_PATTERN)
_TOKEN: Final = re.compile(rf"({JOB_PATTERN})\.([0-9]{{1,6}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a token says.

    Attributes:
        job_id: The job, which is the cookie of both ends' records.
        lasts_s: Seconds from the first request to the last answer, at most.
    """

    job_id: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.job_id}.{math.ceil(self.lasts_s)}"


def token_of(job: Job, tail_s: float = 0.0) -> Token:
    """Return the token of a job whose client waits ``tail_s`` for its last answers."""
    return Token(job_id=job.job_id, lasts_s=job.duration_s + job.traffic.omit_s + tail_s)


def parse_token(text: str) -> Token | None:
    """Return what a token says; None where the text is none."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else Token(job_id=found[1], lasts_s=float(found[2]))


def is_job_cookie(cookie: str | None) -> bool:
    """Return whether a cookie is a job's id, and so names one pair of one run."""
    return cookie is not None and _JOB.fullmatch(cookie) is not None
