from broadside.coordinator.core.judge.checks.check_types import NOTHING
from broadside.coordinator.core.judge.checks.record_checks import check_consistency
from broadside.coordinator.core.summary import Contradiction, Rule, Verdict
from broadside.exchange.messages import Side
from tests.unit.coordinator.core.judge.checks.check_input import burst, of_burst, weights


def _sentences(*contradictions: Contradiction) -> list[str]:
    result = check_consistency(of_burst(burst(contradictions=contradictions)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert all(weight == 94 for _, weight in weights(result))
    return [finding.sentence for finding in result.findings]


def _broken(rule: Rule, value: float, limit: float, pair: str | None = "a") -> Contradiction:
    return Contradiction(rule=rule, pair=pair, side=Side.SERVER, observed=value, limit=limit)


def test_consistent_records_have_no_finding() -> None:
    assert check_consistency(of_burst(burst())) == NOTHING


def test_reports_worst_pair_per_broken_rule() -> None:
    """The ratio 3 to 1 is worse than 8 to 4."""
    rule = Rule.RECEIVED_OVER_SENT
    (text,) = _sentences(
        _broken(rule, 8, 4, "a"), _broken(rule, 3, 1, "b"), _broken(rule, 3, 3, "b")
    )
    assert text == (
        "b (and 1 more pairs): 3 B were received, but only 1 B were sent. These records cannot all "
        "be true."
    )


def test_bound_of_zero_is_the_worst_case() -> None:
    (text,) = _sentences(
        _broken(Rule.OVER_NIC, 5, 0, "zero"), _broken(Rule.OVER_NIC, 100, 1, "a hundredfold")
    )
    assert text.startswith("zero (and 1 more pairs): 5 B crossed the NIC of the server")


def test_every_rule_has_a_sentence_and_a_unit() -> None:
    rows, stamps, fleet = _sentences(
        _broken(Rule.STAMPS, 2.5, 0.5),
        _broken(Rule.ROWS, 7.0, 0.0),
        _broken(Rule.SENT_OVER_OFFERED, 3e9, 2e9, None),
    )
    sentences = sorted((rows, stamps, fleet))
    assert sentences[0].startswith("Fleet: 3 GB were sent by the server, but the configured pace")
    assert "allows 2 GB" in sentences[0]
    assert sentences[1].startswith("a: 7 rows of the server are negative")
    assert sentences[2].startswith("a: the two ends started 2.5 s apart, but their clock errors")
    assert "allow 500 ms" in sentences[2]


def test_unknown_side_is_called_one_end() -> None:
    (text,) = _sentences(Contradiction(rule=Rule.TOTALS, pair="a", side=None, observed=2, limit=1))
    assert text.startswith(
        "a: the rows add up to 2 B, but the total of the engine on one end is 1 B"
    )
