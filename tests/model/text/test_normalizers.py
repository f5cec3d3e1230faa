"""The normalizers give what the reference's give, on real texts, on numbers and on anything."""

from __future__ import annotations

import itertools
import json
import random
from importlib import resources

import pytest
import whisper.normalizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from whisper_stream.model.text.normalizers import BasicTextNormalizer, EnglishTextNormalizer

# The reference leaves its spelling table open.
pytestmark = pytest.mark.filterwarnings("ignore:.*english.json")

SENTENCES = [
    "He hoped there would be stew for dinner, turnips and carrots and bruised potatoes.",
    "Mr. Quilter is the apostle of the middle classes, and we're glad to welcome his gospel.",
    "Dr. O'Neill's won't-do list: y'all ain't gonna like it, ma'am!",
    "I'ma tell you what, she'd been gone, he's got it; they'd gone & it's been done.",
    "[applause] Uh, um, the (very) long <noise> hmm colour of the theatre's grey programme",
    "It cost $3.50, no, €1,000,000 and ¢99; 50% of £20 million is ten million pounds.",
    "In nineteen ninety-nine, on the twenty first of June, at 5 o'clock, flight 3 0 6 left.",
    "My number is one oh one, double two triple three, four point five.",
    "two and a half million, a million and a half, one hundred and one and a half dogs",
    "the 1960s, 274th, 32nd, 1st; 1 s 2 nd; ones and twos, sixes, twenties, hundreds, thousandths",
    "two dollars and seven cents, $2 and 7 cents, $0.55, five per cent, five percent, per person",
    "minus five degrees, plus or minus one, negative zero, positive vibes, -3 and +4.5",
    "192.168.0.1 point 5 point two 3.14. End.",
    "Ærøskøbing, Łódź, straße, naïve café, Þór, crème brûlée, Ω≈ç√∫ 🙂",
    "zero hundred, oh million, 0 thousand, 2.5 million, 2.0005 thousand, 1.2.3 million",
    "thirty six, thirty-sixteen, sixteen thirty, one hundred sixteen, hundred eleven, ten one",
    "'s been  'd done n't can't 'tis 'twas rock 'n' roll",
    "",
    "   ",
    "1",
    "and a half",
    "٣ ٤٥ ½ ² ⅷ 10² x1 1x 1st1",
]
NUMBER_WORDS = (
    "zero oh one two three five six nine ten eleven twelve nineteen twenty thirty ninety hundred "
    "thousand million billion decillion first second third fifth twelfth twentieth hundredth "
    "millions sixes thirties hundreds and point double triple minus plus dollars cents pounds "
    "euro per cent percent a half 5 12 007 2.5 $4 -3 €0.5 100% 3rd dog o'clock"
).split()
ENGLISH_PIECES = st.one_of(
    st.sampled_from(NUMBER_WORDS),
    st.sampled_from(list("$€£¢%.,-'()[]<>0123456789 ")),
    st.sampled_from(
        ["'s", "'d been", "n't", "mr", "st", "ma'am", "i'ma", "um", "colour", "é", "ß"]
    ),
)


def check_english(texts: list[str]) -> None:
    ours = EnglishTextNormalizer()
    reference = whisper.normalizers.EnglishTextNormalizer()
    for text in texts:
        assert ours(text) == reference(text), text


def test_english_sentences() -> None:
    check_english(SENTENCES)
    check_english([text.upper() for text in SENTENCES])


def test_english_numbers() -> None:
    phrases = [" ".join(pair) for pair in itertools.product(NUMBER_WORDS, repeat=2)]
    chooser = random.Random(0)
    phrases += [
        " ".join(chooser.choices(NUMBER_WORDS, k=chooser.randint(3, 9))) for _ in range(2_000)
    ]
    assert len(phrases) > 5_000
    check_english(phrases)


def test_english_spellings() -> None:
    table = resources.files(whisper.normalizers).joinpath("english.json")
    words = list(json.loads(table.read_text()))
    assert len(words) > 1_700
    check_english(words + [f"The {word.title()}'s {word}." for word in words[::7]])


@settings(max_examples=500, deadline=None)
@given(
    text=st.one_of(
        st.text(), st.lists(ENGLISH_PIECES).map(" ".join), st.lists(ENGLISH_PIECES).map("".join)
    )
)
@example(text="i'ma'am can't'd been mr's")
def test_english_on_anything(text: str) -> None:
    check_english([text])


@pytest.mark.parametrize("remove_diacritics", [False, True])
@pytest.mark.parametrize("split_letters", [False, True])
@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.text(), st.text(alphabet="aÀé ß(Øł)[]<>👩‍🚀ไทย漢字한글..-")))
def test_basic_on_anything(remove_diacritics: bool, split_letters: bool, text: str) -> None:
    ours = BasicTextNormalizer(remove_diacritics, split_letters)
    reference = whisper.normalizers.BasicTextNormalizer(remove_diacritics, split_letters)
    for sample in (text, *SENTENCES):
        assert ours(sample) == reference(sample)


def test_by_hand() -> None:
    normalize = EnglishTextNormalizer()
    assert normalize("Mr. Smith's colour, um, won't do!") == "mister smith is color will not do"
    assert normalize("two dollars and seven cents") == "$2.07"
    assert normalize("one oh one dogs, twenty-first") == "101 dogs 21st"
    assert BasicTextNormalizer(split_letters=True)("今天。") == "今 天 "
