"""Texts for comparing tokenizers: written material of many kinds, and seeded random ones."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

POOLS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHXYZ",
    "0123456789",
    "  \t\n\r\x0b\x0c",
    "'sStTmMdDreREveVEllLL",
    "!?.,;:()[]{}<>|/\\\"'`~@#$%^&*-_=+",
    "éàüßñøçÉÀÜ",
    "абвгдежзийАБВ",
    "日本語中文字漢",
    "ひらがなカタカナー",
    "한국어가나다",
    "ابتثجحخ",
    "हिन्दीकखग",
    "ไทยภาษา",
    "😀🎉👍🏽👩‍👩‍👧❤️",
    "\u0301\u0308\u0327\u20dd",
    "\u200b\u200d\ufeff\u00ad",
    "\u00a0\u2003\u3000\u2028\u0085\u1680",
    "٠١٢٣²½Ⅷ①",
    "▁▁_",
    "\x00\x01\x02\x1f\x7f",
    "、。，！？…「」（）",
    "€£¥§©®™",
    "\u2ffc\u31ef\U0002ebf0\U00010400\U0001e900",
)
WORDS = (
    "the", "Hello", " world", "don't", "I'LL", "we're", "12345", "  return x", "\n\n", "==", "https://",
    "foo_bar", "fooBar", "HTTPServer", "self.x", "</div>", "<br>", "1,234.5", "IMGIMGABZ", "<sentinel:12>",
)  # fmt: skip


def random_texts(seed: int, count: int, spellings: list[str]) -> list[str]:
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        pools = draw.sample(POOLS, draw.randrange(1, 6))
        parts = []
        for _ in range(draw.randrange(1, 40)):
            kind = draw.random()
            if kind < 0.5:
                parts.append(draw.choice(draw.choice(pools)))
            elif kind < 0.7:
                parts.append(draw.choice([" ", "  ", "\n", " \n", "\t"]))
            elif kind < 0.8:
                parts.append(draw.choice(WORDS))
            elif kind < 0.85 and spellings:
                parts.append(draw.choice(spellings))
            elif kind < 0.9:
                low, high = draw.choice([(0x20, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000)])
                parts.append(chr(draw.randrange(low, high)))
            else:
                parts.append(draw.choice(draw.choice(POOLS)) * draw.randrange(1, 8))
        texts.append("".join(parts))
    return texts


def sources(limit: int) -> list[str]:
    """Files of the standard library, about `limit` characters in all."""
    texts, total = [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        texts.append(text)
        total += len(text)
        if total >= limit:
            break
    return texts


WRITTEN = (
    "",
    " ",
    "Grüße aus München! Ça va? ¿Qué tal? Où êtes-vous, là-bas?",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "色は匂へど散りぬるを 我が世誰ぞ常ならむ。今日は2026年12月1日です。",
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。",
    "다람쥐 헌 쳇바퀴에 타고파. 키스의 고유조건은 입술끼리 만나야 하고",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 ❤️‍🔥",
    "e\u0301\u0323 a\u0308\u0304 Z\u0351\u036b\u0343",
    "3.14159 1e-9 0xDEADBEEF 1_000_000 ٣٤٥ ½ ² Ⅷ 10,000.00",
    "a\tb\t\tc\n\n\nd\r\n\r\ne   f    g     h" + " " * 100 + "i" + "\n" * 100,
    "<|im_start|>system\nYou are root.<|im_end|>\n<|endoftext|><start_of_turn>user\n<eos>[multimodal]",
    '{\'a\': [1, 2, 3], "b": {"c": null}} /* x */ // y\n#define Z(x) ((x)<<1)',
    "\x00\x01\x02\x07\x0b\x0c\x1b\x7f\u0080\u009f",
    "▁a▁▁b _c",
    "x" * 3000 + "ab" * 1500 + "日" * 1000,
)
