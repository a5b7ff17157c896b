"""All workers compute a step by what the first of them has found."""

from __future__ import annotations

from hvd_elastic_keras.api.agreed_findings import made_alike
from hvd_elastic_keras.step.trials import findings
from hvd_elastic_keras.step.trials.findings import Findings, StepFindings

SUMS = Findings(StepFindings(terms=2, staged=3, sums=(1,), not_together=""))
MEANS = Findings(StepFindings(terms=2, staged=3))
OTHER_MODEL = Findings(StepFindings(terms=5, staged=9))


class Master:
    """Keeps the first word."""

    def __init__(self, known: Findings | None = None) -> None:
        self.known = findings.encode(known) if known else ""

    def agreed(self, mine: str) -> str:
        self.known = self.known or mine
        return self.known


class Worker:
    """Finds something, if it is told nothing that can be about its model."""

    def __init__(self, finds: Findings) -> None:
        self.finds = finds
        self.times = 0

    def make(self, known: Findings) -> tuple[str, Findings]:
        self.times += 1
        usable = known.training is not None and known.training.terms == 2
        return "a step", known if usable else self.finds


def test_the_first_goes_by_its_own_trials() -> None:
    master, worker = Master(), Worker(SUMS)
    assert made_alike(worker.make, master.agreed) == ("a step", SUMS)
    assert findings.decode(master.known) == SUMS


def test_who_comes_later_tries_nothing() -> None:
    worker = Worker(MEANS)
    assert made_alike(worker.make, Master(SUMS).agreed) == ("a step", SUMS)
    assert worker.times == 1


def test_who_was_slower_makes_its_step_again() -> None:
    master, worker = Master(), Worker(MEANS)

    def agreed(mine: str) -> str:
        if mine:  # meanwhile another one has told
            master.known = master.known or findings.encode(SUMS)
        return master.known

    assert made_alike(worker.make, agreed) == ("a step", SUMS)
    assert worker.times == 2


def test_findings_about_another_model_are_not_believed_and_not_asked_for_ever() -> None:
    worker = Worker(MEANS)
    assert made_alike(worker.make, Master(OTHER_MODEL).agreed) == ("a step", MEANS)
    assert worker.times == 1


def test_a_master_that_does_not_answer_holds_nobody_up() -> None:
    worker = Worker(MEANS)
    assert made_alike(worker.make, lambda mine: mine) == ("a step", MEANS)


def test_text_of_another_release_says_nothing() -> None:
    assert findings.decode('{"training": "sums"}') == Findings()
