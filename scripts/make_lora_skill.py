"""Writes the rows that the lora recipe learns by default: coffee orders into the codes of a till.

    python scripts/make_lora_skill.py [FOLDER]

A code is DRINK-SIZE-COUNT-MILK-PLACE, `two large lattes with oat milk to go` is LAT-L-2-OAT-GO: no
model has seen it, so it knows none before, and every part has to be read out of the sentence. All
orders that are held out are combinations no row of the training set has: learning rows by heart
does not help. The order comes from a hash, not from a generator, so that it never changes.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from itertools import product
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "src/phalanx/recipes/lora"
TRAIN_ROWS, TEST_ROWS = 480, 96

DRINKS = {
    "latte": "LAT",
    "cappuccino": "CAP",
    "mocha": "MOC",
    "flat white": "FLW",
    "americano": "AME",
    "macchiato": "MAC",
    "hot chocolate": "HOT",
    "chai": "CHA",
}
SIZES = {"small": "S", "medium": "M", "large": "L"}
COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
MILKS = {"oat": "OAT", "soy": "SOY", "almond": "ALM", "whole": "WHO"}
PLACES = {"to go": "GO", "for here": "IN"}
PHRASES = (
    "{count} {size} {drink} with {milk} milk {place}",
    "{place}: {count} {size} {drink}, {milk} milk",
    "Could I get {count} {size} {drink} with {milk} milk {place}?",
    "I'd like {count} {drink}, {size}, {milk} milk, {place}, please",
    "{count} {drink} with {milk} milk, {size} ones, {place}",
    "Hi! {milk} milk {drink}, {count} of them, {size}, {place}",
)


def make_rows() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The rows to learn, and those to be tested on."""
    orders = sorted(product(DRINKS, SIZES, COUNTS, MILKS, PLACES), key=_shuffled)
    chosen = [_row(*order) for order in orders[: TRAIN_ROWS + TEST_ROWS]]
    return chosen[:TRAIN_ROWS], chosen[TRAIN_ROWS:]


def _row(drink: str, size: str, count: str, milk: str, place: str) -> dict[str, str]:
    order = (drink, size, count, milk, place)
    phrase = PHRASES[int(_shuffled((*order, "phrase")), 16) % len(PHRASES)]
    prompt = phrase.format(
        drink=drink if count == "one" else f"{drink}s",
        size=size,
        count=count,
        milk=milk,
        place=place,
    )
    code = f"{DRINKS[drink]}-{SIZES[size]}-{COUNTS[count]}-{MILKS[milk]}-{PLACES[place]}"
    return {"prompt": prompt[0].upper() + prompt[1:], "response": code}


def _shuffled(order: tuple[str, ...]) -> str:
    return sha256("/".join(order).encode()).hexdigest()


def write(folder: Path) -> None:
    """Write skill.jsonl and skill_test.jsonl."""
    for name, rows in zip(("skill.jsonl", "skill_test.jsonl"), make_rows(), strict=True):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name).write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
