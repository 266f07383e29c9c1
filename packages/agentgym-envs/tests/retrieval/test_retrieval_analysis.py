"""Terms as Lucene's English analyzer makes them; Lucene itself is asked where it is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pydoc_data.topics import topics

from agentgym_envs.retrieval.analysis import STOP_WORDS, Analyzer
from agentgym_envs.retrieval.lucene import _SHELL, JAVA, anserini_jar, find_java
from hypothesis import given
from hypothesis import strategies as st
from library import AWKWARD, library

ASK_LUCENE = """
import json, sys
import jnius_config
jnius_config.set_classpath(sys.argv[1])
from jnius import autoclass
analyzer = autoclass("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
analyze = autoclass("io.anserini.analysis.AnalyzerUtils").analyze
print(json.dumps([list(analyze(analyzer, text).toArray()) for text in json.load(sys.stdin)]))
"""
WORDS = [
    "The runner's dogs' O'Brien's café can't won’t 'quoted' rock'n'roll",
    "state-of-the-art U.S.A. e.g. i.e. 3.14 1,234.56 10:30 1999/2000 a.b:c x_y __init__ _ __ ab_ 5th 2nd",
    "H2O CO2 m² H₂O ½ ① 12 kg/m3 100% $5 C++ C# .NET AT&T foo@bar.com http://a.b/c?d=e",
    "Curaçao Ångström Straße naïve İstanbul ΑΘΗΝΑ ΣΟΦΟΣ Москва 東京タワー ひらがな カタカナ 한국어",
    "relational conditional happily generalizations flies dies agreed feed hopping hoping argument geology",
    "possibly archaeology apologies assembly doubly nobly terribly",
    "e\u0301clair zero\u200dwidth soft\u00adhyphen non\u00a0breaking tab\tnew\nline \x00 nul",
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this",
    "x1 1x a1b2 1.a a.1 1.2.3 1,a a,1 1;2 a;b a:b 1:2 a·b it's IT'S its' 's s's",
]


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


def test_the_stop_words_are_lucenes() -> None:
    assert len(STOP_WORDS) == 33


@given(st.text())
def test_any_text_has_terms_in_lower_case(text: str) -> None:
    assert all(term and term not in STOP_WORDS and term == term.lower() for term in Analyzer().terms(text))


def test_lucene_makes_the_same_terms(java: None) -> None:
    # Python's own manual is the longest English text that is on every machine
    texts = WORDS + [*topics.values()] + [passage.contents for passage in [*AWKWARD, *library(50)]]
    home = find_java(JAVA).resolve().parent.parent
    command = ["/bin/sh", "-c", _SHELL, "sh", str(home), sys.executable, "-c", ASK_LUCENE, str(anserini_jar())]
    asked = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    lucene = json.loads(asked.stdout.splitlines()[-1])
    terms = Analyzer().terms
    assert [terms(text) for text in texts] == lucene
