"""Tokens in the requests of a test, so that a server log identifies the job of each request.

A token is based on the job id and the maximum duration of the job in seconds, for example
``smoke-1.00000.00003.35``. It is sent in the query of a URL, or as the password of an anonymous FTP
login. A device that translates addresses and ports does not change it there. You can use a token to
identify a job, but not to get access. The network should control who can connect to the server.
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
class JobToken:
    """The fields of a token.

    Attributes:
        job_id: The job id, which is also the cookie in the records of both ends.
        lasts_s: How long the test will take from the first request to the last response, in
            seconds.
    """

    job_id: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.job_id}.{math.ceil(self.lasts_s)}"


def token_of(job: Job, shutdown_grace_s: float = 0.0) -> JobToken:
    """Return the token of a job.

    Args:
        job: The job to run.
        shutdown_grace_s: How long the client will wait for the last responses after the test, in
            seconds.
    """
    return JobToken(
        job_id=job.job_id, lasts_s=job.duration_s + job.traffic.omit_s + shutdown_grace_s
    )


def parse_token(text: str) -> JobToken | None:
    """Return the parsed token, or None if the text is not a token."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else JobToken(job_id=match[1], lasts_s=float(match[2]))


def is_job_cookie(cookie: str | None) -> bool:
    """Return True if a cookie is a job id, which identifies one pair of one run."""
    return cookie is not None and _JOB.fullmatch(cookie) is not None
