"""Passages on subdivisions, currencies, languages, scripts and chemical elements."""

from __future__ import annotations

from agentgym_envs.retrieval.passages import Passage
from agentgym_envs.worlds.searchqa.almanac.entities import (
    Country,
    Currency,
    Element,
    Facts,
    Language,
    Script,
    Subdivision,
)
from agentgym_envs.worlds.searchqa.almanac.prose import Writer
from agentgym_envs.worlds.searchqa.almanac.words import article, counted, listed, number


def subdivision(facts: Facts, s: Subdivision) -> Passage:
    """Write the passage on a subdivision: its country and parent, its code and its neighbours by code."""
    w, land = Writer(s.id, s.title), facts.get(s.country, Country)
    w.opens(
        f"{s.plain} is {article(s.type)} of {land.the}.",
        f"{s.plain} is {article(s.type)} in {land.the}.",
        f"One of the subdivisions of {land.the} is {s.plain}, {article(s.type)}.",
    )
    w.says(
        f"Its code in ISO 3166-2 is {s.code}.",
        f"ISO 3166-2 gives it the code {s.code}.",
        f"It is listed in ISO 3166-2 under the code {s.code}.",
    )
    if s.siblings > 1:
        w.says(
            f"Subdivisions of this type number {number(s.siblings)} in {land.the}.",
            f"It is one of {number(s.siblings)} of this type in the country.",
        )
    else:
        w.says(f"No other subdivision of {land.the} is of this type.")
    if s.parent:
        over = facts.get(s.parent, Subdivision)
        w.says(
            f"It forms part of {over.plain}, {article(over.type)}.",
            f"{s.plain} forms part of the {over.type} of {over.plain}.",
        )
    if s.preceding:
        before = facts.get(s.preceding, Subdivision)
        w.says(f"It comes after {before.plain} in the list.", f"Before it stands {before.plain}.")
    if s.following:
        after = facts.get(s.following, Subdivision)
        w.says(
            f"By order of codes the next {s.type} is {after.plain}.",
            f"In the order of the codes it is followed by {after.plain}.",
        )
    return w.passage()


def currency(facts: Facts, c: Currency) -> Passage:
    """Write the passage on a currency: its codes and the countries that use it."""
    w = Writer(c.id, c.title)
    lands = [facts.get(u, Country).the for u in c.countries]
    w.opens(
        f"The {c.name} is a currency with the code {c.code} and the number {c.numeric} in ISO 4217.",
        f"{c.name} is the name of the currency that ISO 4217 lists as {c.code}, with the number {c.numeric}.",
    )
    if len(lands) == 1:
        w.says(f"Of the countries and territories of this almanac only {lands[0]} pays in it.")
        w.says(f"It has one home, {lands[0]}.", f"One country or territory has it for its currency, {lands[0]}.")
    else:
        w.says(f"It is money in {listed(sorted(lands)[:8])}{', among others' if len(lands) > 8 else ''}.")
        w.says(
            f"This almanac knows {number(len(lands))} countries and territories that use the {c.name}.",
            f"The {c.name} is used by {number(len(lands))} countries and territories in all.",
        )
    return w.passage()


def language(facts: Facts, t: Language) -> Passage:
    """Write the passage on a language: its codes, type and countries."""
    w = Writer(t.id, t.title)
    kind = article(f"{t.type} language")
    w.opens(f"{t.name} is {kind}.", f"ISO 639-3 counts {t.name} as {kind}.")
    w.says(
        f"Its code in ISO 639-3 is {t.code}.",
        f"The three letters {t.code} stand for {t.name} in ISO 639-3.",
    )
    if t.short:
        w.says(f"The shorter code of ISO 639-1 is {t.short}.", f"In ISO 639-1 it has the code {t.short}.")
    lands = [facts.get(u, Country).the for u in t.countries]
    if len(lands) == 1:
        w.says(
            f"{lands[0]} is the only country or territory of this almanac that lists it among its languages.",
            f"Among the countries and territories of this almanac only {lands[0]} lists it as one of its languages.",
        )
    elif lands:
        few = listed(sorted(lands)[:6])
        more = "" if len(lands) <= 6 else ", among others"
        w.says(
            f"It is among the languages of {few}{more}; in all {number(len(lands))} countries and territories list it."
        )
    else:
        w.says(
            f"No country or territory of this almanac lists {t.name} among its languages.",
            f"{t.name} is not on the list of languages of any country or territory in this almanac.",
        )
    if t.type != "living":
        w.says(
            f"It is one of {number(t.peers)} {t.type} languages in this almanac.",
            f"This almanac has {number(t.peers)} {t.type} languages, {t.name} among them.",
        )
    return w.passage()


def script(s: Script) -> Passage:
    """Write the passage on a script: its codes."""
    w = Writer(s.id, s.title)
    w.opens(
        f"{s.name} is the name of a script in ISO 15924, the standard for writing systems.",
        f"ISO 15924, which names the writing systems of the world, has an entry for the script {s.name}.",
    )
    if s.kin:
        w.says(
            f"By number it comes next after the script {s.kin}.",
            f"In the order of numbers the script {s.kin} stands right before it.",
        )
    w.says(
        f"Its code there has four letters, {s.code}, and its number is {s.numeric}.",
        f"The script has the code {s.code} and the number {s.numeric}.",
    )
    return w.passage()


def element(facts: Facts, e: Element) -> Passage:
    """Write the passage on a chemical element: its position in the periodic table and its properties."""
    w = Writer(e.id, e.title)
    name = e.name
    w.opens(
        f"{name} is the chemical element with the symbol {e.symbol} and the atomic number {e.number}.",
        f"{name} is a chemical element; its symbol is {e.symbol} and its atomic number {e.number}.",
    )
    place = f"period {e.period}" + (f" and group {e.group}" if e.group else "")
    w.says(f"In the periodic table it stands in {place}.", f"It belongs to {place} of the periodic table.")
    w.says(f"Its atomic mass is {e.mass}.", f"An atom of {name} has a mass of {e.mass} u.")
    if e.density:
        w.says(
            f"The density of {name} is {e.density} grams per cubic centimetre.",
            f"A cubic centimetre of it weighs {e.density} grams, which is its density.",
        )
    if e.structure:
        w.says(f"It crystallises in {article(e.structure)} structure.", f"Its crystal structure is {e.structure}.")
    if e.isotopes:
        w.says(
            f"{counted(e.isotopes, 'isotope')} of {name} {'occurs' if e.isotopes == 1 else 'occur'} in nature.",
            f"It has {counted(e.isotopes, 'isotope')} that {'occurs' if e.isotopes == 1 else 'occur'} in nature.",
        )
    if e.after:
        after = facts.get(e.after, Element)
        w.says(f"The next element in the periodic table is {after.name}.", f"It is followed by {after.name}.")
    return w.passage()
