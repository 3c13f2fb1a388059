"""Estimate how many tokens a text takes in a known vocabulary, with the standard library alone."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from math import ceil

VOCABULARIES = ("o200k_base", "cl100k_base")

# What one of each trait costs in tokens, in o200k_base and in cl100k_base.
_PRICES = """
accent                 1.65 3.21   arabic                 0.22 0.43
arabic-run             0.88 2.75   armenian               0.30 2.11
armenian-run           0.49 1.08   capital                0.95 0.95
capital-after-symbol   0.83 0.78   capital-glued          0.15 0.13
capital-long           0.05 0.09   common-han             0.72 1.00
control                0.95 0.95   cyrillic               0.35 1.05
cyrillic-run           0.41 0.00   digits                 1.08 1.11
emoji                  2.36 3.13   four-bytes             4.05 4.09
georgian               0.41 2.13   georgian-run           0.00 0.86
greek                  0.17 0.64   greek-run              1.73 2.80
han                    1.46 2.35   hangul                 0.84 1.51
hangul-run             0.00 0.00   hebrew                 0.39 1.16
hebrew-run             0.61 0.68   indic                  0.39 1.94
indic-run              1.58 1.80   indochinese            1.92 2.32
indochinese-run        0.84 0.00   kana                   0.91 1.05
latin                  1.45 0.81   line                   1.48 1.39
long-after-symbol      0.09 0.04   long-glued             0.00 0.01
lower                  1.07 1.08   lower-after-symbol     0.31 0.39
lower-glued            0.00 0.00   lower-long             0.35 0.45
mixed                  1.64 1.69   mixed-after-symbol     0.56 0.26
mixed-glued            0.00 0.00   mixed-long             0.09 0.06
next-symbol            0.74 0.75   punctuation            0.64 1.44
rare-pair-capital      2.13 2.52   rare-pair-glued        0.74 0.87
rare-pair-lower        1.77 2.76   rare-pair-mixed        0.47 0.55
rare-pair-upper        0.28 0.36   rare-thai              1.01 2.31
same-symbol            0.08 0.08   second-symbol          0.02 0.00
sign                   2.32 2.67   space                  0.95 0.95
symbols                1.13 1.07   thai                   0.59 1.09
thai-mark              0.53 0.83   thai-word              0.75 0.37
thai-word-letter       0.12 0.87   three-bytes            2.54 3.14
three-bytes-run        4.22 0.28   two-bytes              2.12 2.02
two-bytes-run          0.00 0.00   upper                  1.02 1.06
upper-after-symbol     0.15 0.00   upper-glued            0.16 0.18
upper-long             0.24 0.24   wide                   0.96 1.07
"""

# Where each block of characters begins, and the trait that prices them.
_BLOCKS = """
0000 control       0080 latin        0370 greek         0400 cyrillic     0530 armenian
0590 hebrew        0600 arabic       0700 two-bytes     0800 three-bytes  0900 indic
0E00 thai          0E31 thai-mark    0E32 thai          0E34 thai-mark    0E3F thai
0E47 thai-mark     0E4F thai         0E80 indochinese   10A0 georgian     1100 three-bytes
1780 indochinese   1800 three-bytes  1E00 latin         2000 punctuation  2070 sign
2E80 wide          3040 kana         3100 three-bytes   3400 han          A000 three-bytes
AC00 hangul        D7B0 three-bytes  FF00 wide          FFF0 three-bytes
10000 four-bytes   1F300 emoji       1FB00 four-bytes
"""

# Pairs of letters that words seldom have; names, foreign words and base64 have many. The first
# letter of a group is seldom followed by any of the others.
_RARE_PAIRS = """
aaehjoqz bbcdfghknpqtvwxz cbdfgjnpqvwxz dhkqwxz ejz fbcdghjkmnpqvwxz gbcdfjkpqvwxyz
hbcfghjkpqvwxz ihijuwy jbcdfghijklmnpqrtvwxyz kbcdfhjkmopqruvwxyz lghjknqwxz mcghjknqrtvxz
nbqwxz ohqz pbfgjknqvwxz qabcdefghijklmnopqrstvwxyz rhjqxz sbgjqvxz tgjkqxz uhjkquvwxyz
vbcdfghjklmnpqrstuvwxyz wbcdfgjklmpqtuvxyz xbdfghjklmnoqrsuvwxyz yacdfghjkquvwxyz
zbcdfghjklmnopqrstuvwxyz
"""

# The ideographs that are one token each in cl100k_base, which are also the commonest.
_COMMON_HAN = """
一万三上下不与专业东两个中串为主么义之也书了事二于五些交产享京人亿今介从他付代以们件价任份企优会传
但位体何余作你使例供価保信修倍值停像元先入全公共关其具内円册再写出击分列则初利别到制前力功加务动動
包化北区十午华单南即历原去县参及友反发取变口只可台右号司合同名后向否含听启告员周命和品哈商問器四回
因国图土在地场址型城基報場填增声处备复外多大天失头女好如始子字存学安宋完定实审客家容密对导将小少尔
就局展山岁州工左已市布常平年并广序库应店度建开异式引张当录形影径待後得微心必志态思性总息您情意感成
我或户所手打找技投报拉持指按换据排接推提播支收改放政效数整文料断新方族无日时明易星是時景更最月有服
期木未本机权束条来板构析果查标样核格案检模次款止正此步歳段每比民気水求江汽没治法注活流海消清游源火
点無然片版物特率环现球理生用由电男画界番登的监目直相省看県真知码确示社票私种科秒称移程稍税稿空立站
章端笑符第等签简算管箱米类系素索约级线组经结给络统编网置美老考者而联能自至色节英藏行表装西要見见规
视角解言計記話読计认议记论设证评试话询该详语误说请读调象责败账货购费资起超路身车转软载辑输达过运近
还这进连述退送选通速造連道邮部都配释里重量金钟钮链销错键长開間関门闭问间队阳陆限院除雅集雷需非面音
页项预频题额首验高黑
"""

# The Thai tokens of o200k_base that are met most often, and the letters rare enough for two tokens.
_COMMON_THAI = """
รายละเอียด เพิ่มเติม ข้อความ เครื่อง ทั้งหมด สามารถ ข้อมูล สำหรับ เรื่อง ไม่ได้ รายการ เกี่ยว
บริการ ล่าสุด วันที่ ศาสตร์ เลือก สร้าง เพื่อ ไม่มี เพิ่ม อย่าง ครั้ง เตอร์ จำนวน เมื่อ ที่จะ
ในการ ต้อง เป็น ความ ชื่อ หรือ ตั้ง หน้า แล้ว อยู่ ลี่ย ใหม่ เห็น ส่วน เว็บ ด้วย าที่ กลับ ขึ้น
ด้าน ริ่ม เปิด ผ่าน ครับ ตรวจ หมาย โหลด ระบบ เกิด อื่น าการ ภาษา เรีย นั้น เข้า าราง ท้าย ใหญ่
ก่อน ซึ่ง การ ที่ ของ คุณ ไม่ ใช้ ตัว ได้ และ แบบ นี้ ผู้ ให้ ถูก กับ จาก รูป โดย ภาพ หน้ ผิด
สดง ลาด งาน ข้อ สาร ประ อิน อร์ ยัง ต่อ ค่า โปร ออก ทาง กัน ยาย จัด ติด ส่ง หัว เหล หัส นาด เลข
รับ ลัง ต้น แต่ สอบ กระ ฐาน ราย
"""
_RARE_THAI = "ฃฅฆฉซฌญฎฏฐฑฒธฝฟภฤฦศษฬฮฯฺึโๅๆ๊๋ํ๎๏๐๑๒๓๔๕๖๗๘๙๚๛"

_rows = [row.split() for row in re.findall(r"\S+ +[\d.]+ +[\d.]+", _PRICES)]
_prices = [{trait: float(both[column]) for trait, *both in _rows} for column in (0, 1)]
_starts = [int(start, 16) for start in _BLOCKS.split()[::2]]
_blocks = _BLOCKS.split()[1::2]
_rare_pairs = {group[0] + letter for group in _RARE_PAIRS.split() for letter in group[1:]}
_special = dict.fromkeys(_RARE_THAI, "rare-thai")
_special |= dict.fromkeys(_COMMON_HAN.replace("\n", ""), "common-han")

# Pieces follow the vocabularies' own pre-tokenizers: a word takes along the one space or symbol
# before it, digits go by threes, a change of case starts a new word. Every repeat is bounded, so
# that time stays linear and the cache below holds short strings only.
_UPPER, _LOWER, _SYMBOL = "A-ZÀ-ÖØ-Þ", "a-zß-öø-ɏḀ-ỿ", r"!-/:-@\[-`{-~"
pieces = re.compile(
    rf"[ \t{_SYMBOL}]?[{_UPPER}]{{0,16}}[{_LOWER}]{{1,24}}"
    rf"|[ \t{_SYMBOL}]?[{_UPPER}]{{1,16}}"
    r"|[0-9]{1,3}"
    rf"| ?[{_SYMBOL}]{{1,24}}[\r\n]{{0,8}}"
    r"|[ \t]{0,32}[\r\n]{1,16}"
    r"| {1,63}(?= |\Z)|\t{1,15}(?=\t|\Z)"
    r"| ?[Ͱ-\u0dff\u0e80-\u1dff가-\ud7ff]{1,16}"
    rf"|[^ก-๛]|{'|'.join(_COMMON_THAI.split())}|."
).findall


def traits(piece: str) -> Iterator[tuple[str, int]]:
    """Yield what the price of a piece depends on: each trait, and how often it counts."""
    last = piece[-1]
    if (last.isalpha() and last < "ɐ") or "Ḁ" <= last <= "ỿ":
        yield from _word(piece)
    elif "0" <= last <= "9":
        yield "digits", 1
    elif piece.isspace() and last.isascii():
        yield "line" if last in "\r\n" else "space", 1
    elif "!" <= piece.lstrip(" ")[:1] <= "~":
        run = piece.strip()
        yield "symbols", 1
        if len(set(run)) == 1:
            yield "same-symbol", len(run) - 1
        else:
            yield "second-symbol", 1
            yield "next-symbol", len(run) - 2
    elif len(piece) > 1 and "ก" <= last <= "๛":
        yield "thai-word", 1
        yield "thai-word-letter", len(piece)
    else:
        for letter in piece.lstrip(" "):
            block = _blocks[bisect_right(_starts, ord(letter)) - 1]
            yield _special.get(letter, block), 1
        if len(piece) > 1:
            yield _blocks[bisect_right(_starts, ord(last)) - 1] + "-run", 1


def _word(piece: str) -> Iterator[tuple[str, int]]:
    word = piece if piece[0].isalpha() else piece[1:]
    form, usual = "mixed", 3
    if word.islower():
        form, usual = "lower", 8
    elif word.isupper():
        form, usual = "upper", 2
    elif word[1:].islower():
        form, usual = "capital", 4
    yield form, 1
    yield f"{form}-long", max(0, len(word) - usual)
    where = ""
    if word is piece:
        where = "-glued"
    elif piece[0] != " ":
        where = "-after-symbol"
    if where:
        yield form + where, 1
        yield f"long{where}", max(0, len(word) - 4)
    letters = word.lower()
    rare = sum(letters[at : at + 2] in _rare_pairs for at in range(len(word) - 1))
    yield ("rare-pair-glued" if word is piece else f"rare-pair-{form}"), rare
    if not word.isascii():
        yield "accent", sum(not letter.isascii() for letter in word)


def _price(column: int, piece: str) -> float:
    return sum(_prices[column].get(trait, 0) * times for trait, times in traits(piece))


price_of = {
    vocabulary: lru_cache(maxsize=8192)(partial(_price, column))
    for column, vocabulary in enumerate(VOCABULARIES)
}


class _Costs(dict[str, int]):
    """What words cost with what stands before them, in hundredths of a token; short ones are kept.

    Every price is given in hundredths, so costs are whole, and add up in any order.
    """

    def __init__(self, price: Callable[[str], float], before: str) -> None:
        super().__init__()
        self._price = price
        self._before = before

    def __missing__(self, word: str) -> int:
        cost = round(100 * sum(map(self._price, pieces(self._before + word))))
        if len(word) <= _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[word] = cost
        return cost


_LONGEST, _MOST = 48, 1 << 15
_first = {name: _Costs(price, "") for name, price in price_of.items()}
_later = {name: _Costs(price, " ") for name, price in price_of.items()}


def estimate(text: str, vocabulary: str) -> int:
    """Return about how many tokens the text takes, rather too many than too few."""
    price = price_of.get(vocabulary)
    if price is None:
        known = ", ".join(VOCABULARIES)
        raise ValueError(f"no estimate for the vocabulary {vocabulary!r}; known are {known}")
    # No token is less than a byte.
    at_most = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if not _has_runs(text):  # a piece holds no space but as its first sign, or in a run of blanks
        first, *words = text.split(" ")
        cost = _first[vocabulary][first] + sum(map(_later[vocabulary].__getitem__, words))
        if cost % 100:
            return min(at_most, cost // 100 + 1)
        # By a hair it may be one more, for fractions are not added up exactly.
    return min(at_most, ceil(sum(map(price, pieces(text)))))


def _has_runs(text: str) -> bool:
    """Tell whether a text has blanks that cost less together than one by one."""
    return "\t" in text or (
        "  " in text and ("   " in text or "  \n" in text or "  \r" in text or text.endswith("  "))
    )
