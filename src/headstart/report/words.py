"""Numbers as a report writes them."""

from headstart.report.intervals import Estimate
from headstart.report.worth import Place
from headstart.store.cells import Budget


def capital(words: str) -> str:
    """The same words at the start of a sentence.

    >>> capital("the majority class"), capital("TF-IDF")
    ('The majority class', 'TF-IDF')
    """
    return words[:1].upper() + words[1:]


def percent(share: float) -> str:
    """A share in per cent.

    >>> percent(0.841)
    '84.1 %'
    """
    return f"{100 * share:.1f} %"


def points(difference: float, *, sign: bool = True) -> str:
    """A difference of shares in points, with a true minus; one that is not zero is never written as zero.

    >>> points(0.0431), points(-0.012), points(0.0004), points(0.0), points(-0.02, sign=False)
    ('+4.3', '−1.2', '+0.04', '0.0', '2.0')
    """
    if difference == 0:
        return "0.0"
    value = 100 * (difference if sign else abs(difference))
    digits = next((digits for digits in (1, 2, 3) if round(value, digits)), 4)
    return (f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}").replace("-", "−")


def interval(estimate: Estimate) -> str:
    """The interval of a difference, in points."""
    return f"95 % interval {points(estimate.low)} to {points(estimate.high)}"


def number(budget: Budget) -> str:
    """How many labels.

    >>> number(1000), number("all")
    ('1,000', 'all')
    """
    return budget if budget == "all" else f"{budget:,}"


def count(number: float) -> str:
    """About how many: two figures are all that such a number is known to.

    >>> count(1234.5), count(87.3), count(2.6)
    ('1,200', '87', '3')
    """
    return f"{float(f'{number:.2g}'):,.0f}"


def place(number: float | None, on: Place, less: float = 0) -> str:
    """A place on a curve, less what was there anyway; beyond its ends in words.

    >>> on = Place(830, 50, None, first=50, last=1600)
    >>> place(830, on), place(50, on), place(None, on), place(830, on, less=200)
    ('about 830', 'at most 50', 'more than 1,600', 'about 630')
    """
    if number is None:
        return f"more than {round(on.last - less):,}"
    if number <= on.first:
        return f"at most {round(on.first - less):,}"
    return f"about {count(number - less)}"


def places(on: Place, less: float = 0) -> str:
    """The interval of a place, in brackets; nothing where it lies beyond the end as a whole.

    >>> places(Place(830, 510, None, first=50, last=1600), less=200)
    ' (95 % interval 310 to more than 1,400)'
    >>> places(Place(None, None, None, first=50, last=1600)), places(Place(50, 50, 50, first=50, last=1600))
    ('', '')
    >>> places(Place(None, 1590, None, first=50, last=1600))
    ''
    """
    if on.low is None or (on.high is not None and on.high <= on.first):
        return ""
    low, high = (place(number, on, less).removeprefix("about ") for number in (on.low, on.high))
    if on.at is None and high == f"more than {low}":
        return ""
    return f" (95 % interval {low} to {high})"
