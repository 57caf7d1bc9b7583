"""Which of the results to take, in one sentence, and why; or that none will do, and what would."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from bamboo_sim.market.advise.search import Answer, Result, Trial
from bamboo_sim.market.markets.parameters import MarketError


@dataclass(frozen=True)
class Wish:
    """What the user wants; infinite: no limit. ``sure``: the part of the histories in which both
    must be kept."""

    deadline_h: float = inf
    budget: float = inf
    sure: float = 0.95

    def is_in_time(self, trial: Trial) -> bool:
        """Whether a history ends by the deadline."""
        return trial.hours <= self.deadline_h

    def is_paid(self, trial: Trial) -> bool:
        """Whether a history ends, and costs no more than the budget."""
        return trial.hours < inf and trial.dollars <= self.budget

    def is_met(self, result: Result) -> bool:
        """Whether all histories end, and enough of them keep both."""
        kept = result.share(lambda x: self.is_in_time(x) and self.is_paid(x))
        return result.hours < inf and kept >= self.sure


@dataclass(frozen=True)
class Advice:
    """``best``: what to take; ``why``: sentences, the first of which says it."""

    best: Result
    why: tuple[str, ...]


def advice(answer: Answer, wish: Wish) -> Advice:
    """The cheapest result that keeps the wish; with a budget alone, the fastest. MarketError if
    there is none: it says what was found instead."""
    good = [x for x in answer.results if wish.is_met(x)]
    if not good:
        raise MarketError(_refusal(answer, wish))
    wants_speed = wish.deadline_h == inf and wish.budget < inf
    best = min(good, key=lambda x: (x.hours, x.dollars) if wants_speed else (x.dollars, x.hours))
    return Advice(best, (_sentence(best, wish), *_reasons(answer, wish, good, best, wants_speed)))


def _sentence(best: Result, wish: Wish) -> str:
    said = (
        f"Take {best.candidate.name}: {best.hours:.2f} h and {best.dollars:.2f} dollars in the mean"
    )
    runs = len(best.trials)
    kept = []
    if wish.deadline_h < inf:
        met = sum(map(wish.is_in_time, best.trials))
        kept.append(f"{met} of {runs} histories end within {wish.deadline_h:g} h")
    if wish.budget < inf:
        met = sum(map(wish.is_paid, best.trials))
        kept.append(f"{met} of {runs} cost at most {wish.budget:g} dollars")
    return f"{said}; {' and '.join(kept)}." if kept else f"{said}."


def _reasons(
    answer: Answer, wish: Wish, good: list[Result], best: Result, wants_speed: bool
) -> list[str]:
    what = "fastest" if wants_speed else "cheapest"
    limits = "" if wish == Wish(sure=wish.sure) else f" that keep this in {wish.sure:.0%} of them"
    lines = [
        f"It is the {what} of the {len(good)} computed candidates{limits}; {answer.tried} were"
        " guessed before."
    ]
    others = [x for x in answer.results if x.hours < inf and x is not best]
    cheaper = [x for x in others if x.dollars < best.dollars]
    if cheaper:
        other = max(cheaper, key=lambda x: x.dollars)
        lines.append(f"Next cheaper, but it {_failing(other, wish)}: {_figures(other)}.")
    faster = [x for x in others if x.hours < best.hours]
    if faster:
        other = min(faster, key=lambda x: x.hours)
        lines.append(f"The fastest: {_figures(other)}.")
    steady = [x for x in others if not x.candidate.spot and wish.is_met(x)]
    if steady and best.candidate.spot:
        other = min(steady, key=lambda x: x.dollars)
        lines.append(
            f"The cheapest without spot nodes costs {other.dollars / best.dollars:.1f} times as"
            f" much: {_figures(other)}."
        )
    return lines


def _failing(result: Result, wish: Wish) -> str:
    """How a result does not keep a wish; or that it is slower."""
    late = 1 - result.share(wish.is_in_time)
    dear = 1 - result.share(wish.is_paid)
    if late > 1 - wish.sure:
        return f"is late in {late:.0%} of histories"
    return f"costs too much in {dear:.0%} of histories" if dear > 1 - wish.sure else "is slower"


def _figures(result: Result) -> str:
    return f"{result.candidate.name}, {result.hours:.2f} h, {result.dollars:.2f} dollars"


def _refusal(answer: Answer, wish: Wish) -> str:
    """The option that cannot be kept, and the nearest that was found."""
    ended = [x for x in answer.results if x.hours < inf]
    if not ended:
        return (
            f"no candidate trains {answer.question.samples:g} samples within 60 days; give fewer"
            " --samples, or a larger fleet."
        )
    fastest = min(ended, key=lambda x: (x.slow_hours, x.dollars))
    cheapest = min(ended, key=lambda x: x.dollars)
    sure = f"in {wish.sure:.0%} of {len(fastest.trials)} histories"
    if not any(x.share(wish.is_in_time) >= wish.sure for x in ended):
        most = max(x.hours for x in fastest.trials)
        return (
            f"--deadline {wish.deadline_h:g} cannot be met {sure}; the fastest that was found is"
            f" {_figures(fastest)}. Give --deadline {_above(most)}, or fewer --samples."
        )
    if not any(x.share(wish.is_paid) >= wish.sure for x in ended):
        most = max(x.dollars for x in cheapest.trials)
        return (
            f"--budget {wish.budget:g} is not enough {sure}; the cheapest that was found is"
            f" {_figures(cheapest)}. Give --budget {_above(most)}, or fewer --samples."
        )
    timely = [x for x in ended if x.share(wish.is_in_time) >= wish.sure]
    other = min(timely, key=lambda x: x.dollars)
    most = max(x.dollars for x in other.trials)
    return (
        f"--deadline {wish.deadline_h:g} and --budget {wish.budget:g} cannot both be kept {sure};"
        f" the cheapest in time is {_figures(other)}. Give --budget {_above(most)}, or a later"
        " --deadline."
    )


def _above(value: float) -> str:
    """A little more, with three digits."""
    shown = float(f"{value:.3g}")
    return f"{shown if shown >= value else float(f'{value * 1.005:.3g}'):g}"
