"""Tests of terms against Lucene's English analyzer. `uv run python <this file>` updates `lucene_terms.json`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from agentgym_envs.retrieval.analysis import STOP_WORDS, Analyzer
from agentgym_envs.retrieval.lucene_process import _SHELL, JAVA, anserini_jar, find_java
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import AWKWARD, make_passages

ASK_LUCENE = """
import json, sys
import jnius_config
jnius_config.set_classpath(sys.argv[1])
from jnius import autoclass
analyzer = autoclass("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
analyze = autoclass("io.anserini.analysis.AnalyzerUtils").analyze
print(json.dumps([list(analyze(analyzer, text).toArray()) for text in json.load(sys.stdin)]))
"""
SAVED = Path(__file__).parent / "lucene_terms.json"
TEXTS: dict[str, list[str]] = {
    "English": [
        "The runner's dogs' O'Brien's café can't won’t 'quoted' rock'n'roll d'Artagnan l’été",
        "relational conditional happily generalizations flies dies agreed feed hopping hoping argument geology",
        "possibly archaeology apologies assembly doubly nobly terribly",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they",
    ],
    "signs": [
        "state-of-the-art U.S.A. e.g. i.e. a.b. a:b a.b:c a·b it's IT'S its' 's s's ‘x’ nul \x00",
        "x_y __init__ _ __ ab_ a‿b x__y @_1_@ C++ C# .NET AT&T foo@bar.com http://a.b/c?d=e",
        "soft\u00adhyphen zero\u200dwidth non\u00a0breaking tab\tnew\nline \u0301 \u0301a",
    ],
    "numbers": [
        "3.14 1,234.56 10:30 1999/2000 5th 2nd .5 3,4,5, 1. 1.a a.1 1.2.3 1,a a,1 1;2 a;b 1:2 x1 1x a1b2 100% $5",
        "H2O CO2 m² H₂O ½ ① ª º ⅷ ⒜ Ⓐ 12 kg/m3 １２３ १२३४.५ ٤٥٦٫٧ १,२",
    ],
    "Latin": ["Curaçao Ångström Straße naïve İstanbul ı ʼn ǅ ẞ e\u0301clair Z\u0351\u036b\u0343 o\u20dd ＡＢＣ 𝒳𝒴"],
    "Greek": ["ΑΘΗΝΑ ΣΟΦΟΣ η Αθήνα είναι η πρωτεύουσα· ἄνθρωπος α\u0301"],
    "Cyrillic": ["Москва — столица России, й и\u0306 ё а\u0488 об'єкт"],
    "Hebrew": ["יְרוּשָׁלַיִם צה\"ל צה״ל ג' ז'ורז' 'אב' \"גד\""],
    "Arabic": ["العَرَبِيَّة لُغَةٌ سَامِيَّة می\u200cخواهم"],
    "Devanagari": ["भारत की राजधानी नई दिल्ली है। क्षेत्रफल क्\u200dष नमस्ते_दुनिया"],
    "Bengali": ["বাংলাদেশের রাজধানী ঢাকা, দুঃখ"],
    "Tamil": ["தமிழ்நாட்டின் தலைநகரம் சென்னை ஆகும்"],
    "other scripts of India": ["ગુજરાતી ਪੰਜਾਬੀ తెలుగు ಕನ್ನಡ മലയാളം සිංහල ꯃꯤꯇꯩ"],
    "Han": ["北京市是首都。東京 葛\U000e0100飾"],
    "Kana": ["ひらがな が\u3099 カタカナ カタカナabc ｶﾀｶﾅ ﾊﾟﾋﾟ 東京タワー"],
    "Hangul": ["한국어의 수도는 서울 ㄱㄴ \u1112\u1161\u11ab"],
    "more scripts": ["አማርኛ Հայերեն ქართული ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ བོད་ཡིག ꦗꦮ ᮞᮥᮔ᮪ᮓ"],
    "emoji": ["😀 👍🏽 👨\u200d👩\u200d👧 🇩🇪🇫🇷 ❤️ © ™ 1️⃣ a😀b ☂ ☂️"],
}
"""Texts that cover the rules for word boundaries, by script or kind."""


def test_terms() -> None:
    terms = Analyzer().terms
    assert terms("The Runner’s dogs were running at 1,234.5 km/h") == [
        "runner",
        "dog",
        "were",
        "run",
        "1,234.5",
        "km",
        "h",
    ]
    assert terms("a rose is a rose") == ["rose", "rose"]
    assert terms("") == terms("!?") == terms("the __") == []


def test_stop_word_count_matches_lucenes() -> None:
    assert len(STOP_WORDS) == 33


@given(st.text())
def test_terms_are_lowercase_and_not_stop_words(text: str) -> None:
    assert all(term and term not in STOP_WORDS and term == term.lower() for term in Analyzer().terms(text))


def test_terms_match_lucenes_in_every_script() -> None:
    saved = json.loads(SAVED.read_text(encoding="utf-8"))
    assert saved.keys() == TEXTS.keys(), f"TEXTS changed; run: uv run python {__file__}"
    terms = Analyzer().terms
    assert {kind: [terms(text) for text in texts] for kind, texts in TEXTS.items()} == saved


@pytest.mark.parametrize("piece", ["a'", "ab", "_", "_a", 'א"', "\u0301", "a\u0301", "😀\u200d", "bly", "1,"])
def test_analysis_time_is_not_quadratic(piece: str) -> None:
    # quadratic time in the length of a word would take hours
    assert len(Analyzer().terms(piece * 400_000)) < 10_000


def test_thai_words_are_several_terms_each() -> None:
    # Lucene makes one term of all text up to the next space
    assert Analyzer().terms("กรุงเทพ เมือง") == ["กร", "งเทพ", "เม", "อง"]


def lucene_terms(texts: Sequence[str]) -> list[list[str]]:
    home = find_java(JAVA).resolve().parent.parent
    command = ["/bin/sh", "-c", _SHELL, "sh", str(home), sys.executable, "-c", ASK_LUCENE, str(anserini_jar())]
    completed = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    return json.loads(completed.stdout.splitlines()[-1])


def lucene_terms_json() -> str:
    """Return Lucene's terms of `TEXTS`, as in `lucene_terms.json`."""
    terms = iter(lucene_terms([text for texts in TEXTS.values() for text in texts]))
    by_kind = {kind: [next(terms) for _ in texts] for kind, texts in TEXTS.items()}
    return json.dumps(by_kind, ensure_ascii=False, indent=1) + "\n"


@pytest.mark.long
def test_lucene_produces_the_same_terms(java: None) -> None:
    assert lucene_terms_json() == SAVED.read_text(encoding="utf-8")
    # the Python manual is the longest English text available on every machine
    texts = [*topics.values(), *(passage.contents for passage in [*AWKWARD, *make_passages(50)])]
    terms = Analyzer().terms
    assert [terms(text) for text in texts] == lucene_terms(texts)


if __name__ == "__main__":
    SAVED.write_text(lucene_terms_json(), encoding="utf-8")
