"""Write plain text for the language inlays of `compose_languages.py`: a sentence a line.

    python benchmarks/language_texts.py english wikitext2/train.txt.zst english.txt
    python benchmarks/language_texts.py russian fortunes-ru/usr/share/games/fortunes/ru russian.txt

English is read from WikiText-2, Russian from Debian's package `fortunes-ru` (`dpkg -x`). Sentences of 6 to 40 words
are kept, each once.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

WORDS = (6, 40)


def wikitext(path: Path) -> Iterator[str]:
    """Yield paragraphs; headings begin with `=`, spaces around punctuation are of the corpus's tokenizer."""
    import pyarrow

    for line in pyarrow.input_stream(str(path), compression="zstd").read().decode().splitlines():
        text = re.sub(r" @(.)@ ", r"\1", line.strip())
        text = re.sub(r" ([.,;:!?)\]%]|'s\b|n't\b)", r"\1", text)
        text = re.sub(r'" ([^"]*) "', r'"\1"', re.sub(r"([(\[]) ", r"\1", text))
        if not text.startswith("=") and "<unk>" not in text:
            yield text


def fortunes(folder: Path) -> Iterator[str]:
    """Yield sayings, without the lines that name the author."""
    for path in sorted(folder.glob("*.u8")):
        for entry in re.split(r"^%$", path.read_text("utf-8"), flags=re.MULTILINE):
            lines = [line.strip() for line in entry.splitlines()]
            yield " ".join(line for line in lines if line and not line.startswith("--"))


def sentences(paragraphs: Iterator[str], letters: str) -> list[str]:
    """Return the sentences of fitting length that are written in `letters`, a class of a regular expression."""
    found = []
    for paragraph in paragraphs:
        for sentence in re.split(r"(?<=[.!?…])\s+", paragraph):
            own = len(re.findall(letters, sentence))
            if WORDS[0] <= len(sentence.split()) <= WORDS[1] and own > 0.6 * len(sentence):
                found.append(sentence)
    return list(dict.fromkeys(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("language", choices=("english", "russian"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    if options.language == "english":
        found = sentences(wikitext(options.source), "[A-Za-z]")
    else:
        found = sentences(fortunes(options.source), "[А-Яа-яЁё]")
    options.out.write_text("\n".join(found) + "\n")
    print(f"{len(found)} sentences")


if __name__ == "__main__":
    main()
