"""Test in a lab that sequential studies stop when their answer is certain, or at their budget."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from broadside.lab.site import built, staged
from broadside.lab.topology import LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import Site, call
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.alone]

# Each of the four studies uses one of the pairs, so that they can run at the same time. An aborted
# run may still need its pair.
PAIRS_COUNT = 5
# At real scale, which is 100 times the rate in the lab.
FAST, SLOW = 800_000_000, 400_000_000
RATE = "traffic.stream_bits_per_second"
SMALL: dict[str, Any] = {
    "pairs_count": 1,
    "bursts_count": 1,
    "burst_s": 5,
    "lead_s": 6,
    "late_after_s": 4,
    "traffic.streams_count": 1,
    "traffic.block_bytes": 8192,
    RATE: FAST,
    "scale": 100,
    "objective.target_bits_per_second": None,
}
# Three rounds need 6 trials of 15 to 20 s.
WITHIN_S = 400.0


@pytest.fixture(scope="module")
def standing(
    tmp_path_factory: pytest.TempPathFactory, both_cores_for_module: None
) -> Iterator[tuple[Site, str]]:
    folder = tmp_path_factory.mktemp("sequential")
    spec = LabSpec(
        pairs_count=PAIRS_COUNT,
        prefix=new_prefix(),
        nic_bits_per_second=20_000_000,
        firewall_bits_per_second=100_000_000,
    )
    with built(spec) as lab, Site(folder) as site, staged(lab, folder, device_counter={}) as stage:
        yield site, stage.coordinator.url


@pytest.fixture(scope="module", autouse=True)
def limited(standing: tuple[Site, str]) -> Iterator["Future[tuple[dict[str, Any], float]]"]:
    """Run the study with a budget beside the other studies."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(limited_study, standing[1])


def create(url: str, question: dict[str, Any], **sequential: Any) -> str:
    body = {
        "scenario": "smoke",
        "overrides": SMALL,
        "question": question,
        "sequential": sequential,
        "by": "tests",
    }
    study = call(url, "POST", "/v1/studies", json=body)
    assert study["results"] == []
    assert "expected bursts: " in study["expected"]
    return str(study["study_id"])


def ended(url: str, study_id: str) -> dict[str, Any]:
    def study() -> dict[str, Any] | None:
        answer: dict[str, Any] = call(url, "GET", f"/v1/studies/{study_id}")
        return answer if answer["ended_at"] is not None else None

    result: dict[str, Any] = wait_for(f"the end of {study_id}", study, WITHIN_S, pause_s=1)
    assert result["problem"] is None
    assert [trial["problem"] for trial in result["results"]] == [None] * len(result["results"])
    return result


def modes(a: int, b: int) -> dict[str, Any]:
    """Return an A/B question with two paced rates."""
    return {
        "kind": "ab",
        "a": {"name": "a", "overrides": {RATE: a}},
        "b": {"name": "b", "overrides": {RATE: b}},
    }


def test_ab_sweep_and_search_stop_when_certain(standing: tuple[Site, str]) -> None:
    site, url = standing
    over = {"field": RATE, "values": [SLOW, FAST]}
    sweep = create(url, {"kind": "sweep", "axes": [over]})
    # The NIC carries 20 Mbit/s of frames, which is 2 Gbit/s at real scale.
    search = create(
        url,
        {
            "kind": "search",
            "min_bits_per_second": 0.5e9,
            "max_bits_per_second": 1e9,
            "shortfall_max_ratio": 0.1,
        },
    )
    states = [f"--a-set={RATE}={FAST}", f"--b-set={RATE}={SLOW}"]
    options = [f"--set={name}={json.dumps(value)}" for name, value in SMALL.items() if value]
    done = site.run(
        *("study", "ab", "smoke", "--a", "fast", "--b", "slow", *states, *options),
        *("--until-certain", "--study-budget", "100000", "-o", "json", "--api", url),
        timeout_s=WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    first, *_ = done.stderr.splitlines()
    assert first.startswith("expected bursts: 6 for a large difference, about 24 for none")
    study = json.loads(done.stdout)
    assert study["expected"] == first
    # At least three rounds are needed, and they are enough for half of the rate.
    assert len(study["results"]) == 6
    [compared] = study["conclusion"]["sequential"]
    assert compared["decision"] == "different"
    # One interval in twenty does not contain the true ratio, and paced rates make it narrow.
    assert compared["ratio_low"] < 0.51
    assert compared["ratio_high"] > 0.49
    assert "certain after 3 rounds" in study["conclusion"]["sentence"]

    study = ended(url, sweep)
    assert len(study["results"]) == 6
    [compared] = study["conclusion"]["sequential"]
    assert (compared["a"], compared["decision"]) == (str(FAST), "different")

    study = ended(url, search)
    # The highest rate is loss-free, and is certain after three bursts.
    assert len(study["results"]) == 3
    result = study["conclusion"]["search_result"]
    assert result["highest_bits_per_second"] == pytest.approx(1e9)
    assert result["open_bits_per_second"] == []


def limited_study(url: str) -> tuple[dict[str, Any], float]:
    """Return a study whose budget is enough for two rounds, and the budget in USD.

    The states do not differ, so that the study would go on for twenty rounds.
    """
    before = create(url, modes(FAST, FAST), margin_ratio=0.0001, budget_usd=1e6)
    cost_usd = wait_for(
        "the cost of the first trial",
        lambda: (
            (results := call(url, "GET", f"/v1/studies/{before}")["results"])
            and results[0]["cost_usd"]
        ),
        WITHIN_S,
        pause_s=1,
    )
    call(url, "POST", f"/v1/studies/{before}/abort", json={"reason": "the cost is known"})
    # Two rounds cost four trials, and a third one would cost six.
    budget_usd = 5 * cost_usd
    study_id = create(url, modes(FAST, FAST), margin_ratio=0.0001, budget_usd=budget_usd)
    return ended(url, study_id), budget_usd


def test_a_study_respects_its_budget_and_knows_the_history(
    limited: "Future[tuple[dict[str, Any], float]]",
) -> None:
    study, budget_usd = limited.result()
    assert re.search(
        r"between bursts \(from \d+ earlier bursts of this device\)|assumed", study["expected"]
    )
    assert len(study["results"]) == 4
    assert sum(trial["cost_usd"] for trial in study["results"]) <= budget_usd
    assert "the next round would exceed the budget" in " ".join(study["conclusion"]["notes"])
    [compared] = study["conclusion"]["sequential"]
    assert compared["decision"] == "open"
