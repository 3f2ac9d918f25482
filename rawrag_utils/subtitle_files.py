"""Reading of subtitles, SRT and VTT, as real files are.

pysubs2 reads the cues, after the layout was mended: on its own it takes hours above 99 for 0, appends VTT's notes and
identifiers to the cue above them, drops a last line that is a number, and takes a line with two inner times for the
beginning of a cue. Every repair is a row of the report. A file that is no subtitle is refused.
"""

import codecs
import html
import io
import re
import unicodedata
from collections import Counter
from typing import NamedTuple

from rawrag_utils import paths
from rawrag_utils.paths import BadInput

LARGEST = 64 << 20  # bytes; ten hours of cues are about two million
REMEDY = "give an SRT or VTT file"
FORM = "00:00:01,000 --> 00:00:03,500"
# Where Big5 and GB 2312 keep their marks and the characters that are used most. The share of a text's characters that
# lie there tells the two encodings apart; whether the bytes can be decoded at all does not.
COMMON = {"cp950": ("cp950", 0xA140, 0xC67E), "gb18030": ("gb2312", 0xA1A1, 0xD7F9)}

_STAMP = r"(-?)(?:([0-9]{1,3})\s*:\s*)?([0-9]{1,2})\s*:\s*([0-9]{1,2})(?:\s*[.,]\s*([0-9]{1,9})(?![0-9]))?"
_TIMING = re.compile(rf"\s*{_STAMP}\s*(?:[-–—−]+\s*(?:>|&gt;)|→)\s*{_STAMP}(.*)")
_BROKEN = re.compile(r"\s*-?[0-9]+\s*:[^<>]*-->|\s*-->\s*[0-9]+\s*:")  # meant as a time line, but unreadable
_MINUTES = r"[0-5][0-9]:[0-5][0-9]"
_SRT, _VTT = rf"[0-9]{{2,}}:{_MINUTES},[0-9]{{3}}", rf"(?:[0-9]{{2,}}:)?{_MINUTES}\.[0-9]{{3}}"
_USUAL = {False: re.compile(rf"{_SRT} --> {_SRT}(?!\S)"), True: re.compile(rf"{_VTT}\s+-->\s+{_VTT}(?!\S)")}
_SETTINGS = re.compile(r"(?:\s+[A-Za-z][A-Za-z0-9]*:\S+)*\s*")  # VTT's `align:start`, SRT's `X1:40 X2:600`
_NUMBER = re.compile(r"\s*[0-9]{1,9}\s*")  # strip() before int(), which takes not all that is \s
_ASIDE = re.compile(r"\s*(?:WEBVTT|NOTE|STYLE|REGION)(?:\s|$)")


class Cue(NamedTuple):
    """One subtitle. `number` is its place in the file, from 1; `speaker` None where the file names nobody."""

    number: int
    start_ms: int
    end_ms: int
    text: str
    speaker: str | None = None


class Subtitles(NamedTuple):
    """What `read` returns: cues in order of time, and a report as a corpus has it (`place, fault, handling`)."""

    path_name: str
    cues: tuple[Cue, ...]
    report: list[dict]


class _Block(NamedTuple):
    """A cue as it stands in the file."""

    line: int  # of its times, from 1
    number: str | None  # or a VTT file's identifier
    apart: bool  # whether a blank line stands before it
    usual: bool  # whether its times are written as the format has them
    times: re.Match | None  # of `_TIMING`, None where they cannot be read
    text: list[str]


# ------------------------------------------------------------------------------------------------------------- reading


def read(path, encoding=None):
    """Read an SRT or VTT file, told apart by what it holds; returns `Subtitles`.

    `encoding` overrides the detection: byte order mark, UTF-8, UTF-16 by its zero bytes, Big5 or GB18030 by which of
    the two gives more common characters, Windows-1252 for mostly plain letters; anything but UTF-8 is in the report.
    Texts are free of markup, entities and music marks. Numbers are places in the file, whatever the file calls them.
    Raises `BadInput` for a file that cannot be read or decoded, that is no subtitle (with the first line that
    shows it), or in which nobody says anything.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "talk.srt")
    >>> _ = path.write_text("1\\n00:00:01.000 --> 00:00:03,500\\n<i>Tides</i> &amp; moons\\n")
    >>> subtitles = read(path)
    >>> subtitles.cues, [row["fault"] for row in subtitles.report]
    ((Cue(number=1, start_ms=1000, end_ms=3500, text='Tides & moons', speaker=None),),
     ['unusual time stamp', 'markup', 'HTML entity'])
    """
    path = paths.resolve(path)
    name, report = paths.relative(path), []

    def note(where, fault, handling):
        report.append({"place": f"{name} {where}", "fault": fault, "handling": handling})

    text = _decoded(_bytes(path, name), encoding, name, note)
    # Not str.splitlines: an editor counts no line at U+2028 or a form feed. "\r\r\n" is a line end converted twice.
    lines = text.replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    vtt = text.lstrip().startswith("WEBVTT")
    blocks = _blocks(_without_asides(lines) if vtt else lines, vtt, name, note)
    cues = _in_order(_cues(blocks, vtt, note), blocks, note)
    if not cues:
        raise BadInput(f"{name}: none of its {len(blocks)} cues holds a word; {REMEDY} in which somebody speaks")
    return Subtitles(name, tuple(cues), report)


def _bytes(path, name):
    try:
        if not path.is_file():
            raise BadInput(f"{name}: no such file; correct the path (a relative one starts at the repository root)")
        if (size := path.stat().st_size) > LARGEST:
            raise BadInput(f"{name}: {size:,} bytes are more than any subtitle has; {REMEDY}")
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{name}: cannot be read ({error.strerror}); check the path and who may read it") from error


def _decoded(raw, encoding, name, note):
    """The file's text without byte order marks and zero bytes; what could not be decoded is U+FFFD and noted."""
    if encoding is not None:
        try:
            text = raw.decode(encoding, "replace")
        except (LookupError, ValueError, TypeError) as error:
            remedy = "name another, such as 'big5'"
            raise BadInput(f"{name}: encoding={encoding!r:.40} cannot decode it; {remedy}") from error
        text = text.encode("utf-8", "replace").decode()  # some codecs let lone surrogates through
    else:
        encoding = _encoding(raw, name)
        text = raw.decode(encoding, "replace")
        if encoding not in ("utf-8", "utf-8-sig"):
            note("file", "not UTF-8", f"read as {encoding}")
    if raw.startswith(codecs.BOM_UTF8):
        note("file", "byte order mark", "removed")
    if broken := text.count("\ufffd"):
        note("file", "bytes that are no characters", f"{broken} times U+FFFD")
    if "\0" in text:
        note("file", "zero bytes", "removed")
    return text.replace("\0", "").replace("\ufeff", "")  # files joined end to end have marks inside


def _encoding(raw, name):
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's, which it begins with
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if raw.startswith(mark):
            return encoding
    # Digits and colons of the times have a zero byte in UTF-16: all at even places or all at odd ones.
    even, odd = raw[::2].count(0), raw[1::2].count(0)
    if max(even, odd) > 4 * min(even, odd) and 20 * max(even, odd) > len(raw):
        return "utf-16-be" if even > odd else "utf-16-le"
    text = raw.decode("utf-8", "replace")
    beyond_ascii = len(text) - len(text.encode("ascii", "ignore"))
    if 10 * text.count("\ufffd") <= beyond_ascii:  # a cut or damaged character does not make it another encoding
        return "utf-8"
    return _legacy(raw, name)


def _legacy(raw, name):
    """`cp950` (Big5), `big5hkscs` (with Hong Kong's characters), `gb18030` or `cp1252`."""
    shares = {encoding: _common(raw, encoding) for encoding in COMMON}
    best = max(shares, key=shares.get)
    if shares[best] > 1 / 3:
        hong_kong = raw.decode("big5hkscs", "replace").count("\ufffd") < raw.decode("cp950", "replace").count("\ufffd")
        return "big5hkscs" if best == "cp950" and hong_kong else best
    letters = [c for c in raw.decode("cp1252", "replace") if c.isalpha() or c == "\ufffd"]
    if 3 * sum(c > "\x7f" for c in letters) > len(letters):
        raise BadInput(
            f"{name}: neither UTF-8, UTF-16, Big5 nor GB18030; save it as UTF-8 or name its encoding, as in "
            "encoding='shift_jis'"
        )
    return "cp1252"


def _common(raw, encoding):
    """The share of characters beyond ASCII that are among the encoding's most used."""
    codec, low, high = COMMON[encoding]
    found = all_of_them = 0
    for character, times in Counter(raw.decode(encoding, "replace")).items():
        if character > "\x7f":
            code = int.from_bytes(character.encode(codec, "ignore"))
            found, all_of_them = found + times * (low <= code <= high), all_of_them + times
    return found / all_of_them if all_of_them else 0.0


# -------------------------------------------------------------------------------------------------------------- layout


def _timing(line):
    """The match of a time line, full-width forms included; else None."""
    return _TIMING.match(unicodedata.normalize("NFKC", line))


def _without_asides(lines):
    """Lines of a VTT file with its header, notes, styles and regions made blank, so that line numbers hold."""
    kept, aside = [], False
    for i, line in enumerate(lines):
        if not line.strip() or _timing(line):
            aside = False
        elif i == 0 or not lines[i - 1].strip():
            aside = bool(_ASIDE.match(line))
        kept.append("" if aside else line)
    return kept


def _blocks(lines, vtt, name, note):
    """The cues as they stand in the file, as `_Block`s; what stands before the first is noted and left out."""
    matches = [(i, _timing(line)) for i, line in enumerate(lines)]
    found = [(i, times) for i, times in matches if times or _BROKEN.match(lines[i])]
    starts, floor, expected = [], 0, None
    for i, _ in found:
        starts.append(_start(lines, i, floor, expected, vtt))
        number = lines[starts[-1]]
        expected = int(number.strip()) + 1 if starts[-1] < i and _NUMBER.fullmatch(number) else None
        floor = i + 1
    readable = sum(times is not None for _, times in found)
    before = [i for i, line in enumerate(lines[: starts[0] if starts else None]) if line.strip()]
    if not readable or len(before) > max(3, readable):
        _refuse(lines, before + [i for i, times in found if times is None], name)
    if before:
        note(f"line {before[0] + 1}", "lines before the first cue", f"{len(before)} left out")
    blocks = []
    for (i, times), start, end in zip(found, starts, [*starts[1:], len(lines)], strict=True):
        apart = not blocks or not lines[start - 1].strip()
        number = lines[start].strip() if start < i else None
        usual = bool(_USUAL[vtt].match(lines[i].strip()))
        blocks.append(_Block(i + 1, number, apart, usual, times, lines[i + 1 : end]))
    return blocks


def _start(lines, i, floor, expected, vtt):
    """Index of the line with which the cue of the time line `i` begins: its number, its identifier or the times.

    `floor` is the first line that can belong to it, `expected` the number that would come next.
    """
    j = i - 1
    while j >= floor and not lines[j].strip():
        j -= 1
    if j < floor:
        return i
    adjacent = j == i - 1
    # A number that a blank line parts from the times may be the text of the cue above.
    if _NUMBER.fullmatch(lines[j]) and (adjacent or floor == 0 or int(lines[j].strip()) == expected):
        return j
    return j if vtt and adjacent and j > floor and not lines[j - 1].strip() else i


def _refuse(lines, suspects, name):
    """Raise `BadInput` that names the first of the lines `suspects` that is no number; else the first of them."""
    first = next((i for i in suspects if not _NUMBER.fullmatch(lines[i])), suspects[0] if suspects else None)
    if first is None:
        raise BadInput(f"{name}: line 1: neither here nor below is a cue; {REMEDY}")
    raise BadInput(f"{name}: line {first + 1}, {lines[first]!r:.60}, is not how a cue begins ({FORM}); {REMEDY}")


# ---------------------------------------------------------------------------------------------------------------- cues


def _cues(blocks, vtt, note):
    """Cues in the order of the file, cleaned; every repair is noted with the cue's number and line."""
    import pysubs2

    places = [f"cue {number} (line {block.line})" for number, block in enumerate(blocks, 1)]
    _note_layout(blocks, places, vtt, note)
    readable = [(number, block) for number, block in enumerate(blocks, 1) if block.times]
    events = pysubs2.SSAFile.from_file(io.StringIO(_mended(readable)), "vtt", keep_html_tags=True)
    cues = []
    for (number, block), event in zip(readable, events, strict=True):
        text = event.text.replace("\\N", "\n").replace("&#0092;", "\\").replace("&#0058;", ":")
        voices = dict.fromkeys(" ".join(_plain(v).split()) for v in _VOICE.findall(text))
        for fault, handling, mend in _CLEANING:
            if (mended := mend(text, vtt)) != text:
                note(places[number - 1], fault, handling)
                text = mended
        text = "\n".join(filter(None, (" ".join(line.split()) for line in text.split("\n"))))
        if not text:
            note(places[number - 1], "empty" if not "".join(block.text).strip() else "no words", "left out")
            continue
        end = max(event.start, event.end)
        if event.end <= event.start:
            backwards = event.end < event.start
            note(places[number - 1], "ends before it starts" if backwards else "zero length", "kept, zero length")
        cues.append(Cue(number, event.start, end, text, ", ".join(filter(None, voices)) or None))
    return _labelled(cues, places, note)


def _note_layout(blocks, places, vtt, note):
    last = None
    for block, place in zip(blocks, places, strict=True):
        if not vtt:  # there numbers are optional
            number = None if block.number is None else int(block.number)
            if number is None:
                note(place, "no number", "numbered by place")
            elif number != (last or 0) + 1:
                note(place, "number twice" if number == last else "number out of turn", "numbered by place")
            last = (last or 0) + 1 if number is None else number
        if not block.apart:
            note(place, "no blank line before it", "taken apart")
        if not block.times:
            note(place, "unreadable time line", "left out")
            continue
        if not block.usual:
            note(place, "unusual time stamp", "read")
        if "-" in (block.times[1], block.times[6]):
            note(place, "time below zero", "zero")
        if not _SETTINGS.fullmatch(block.times[11]):
            note(place, "text on the time line", "kept")
        filled = [i for i, line in enumerate(block.text) if line.strip()]
        if filled and filled[-1] - filled[0] >= len(filled):
            note(place, "blank line inside", "joined")


def _mended(readable):
    """The cues laid out as pysubs2 reads them without loss: VTT, since its hours may have more than two digits."""
    parts = ["WEBVTT\n"]
    for number, block in readable:
        start, end = (_mended_stamp(block.times.groups()[k : k + 5]) for k in (0, 5))
        rest = block.times[11]
        lines = block.text if _SETTINGS.fullmatch(rest) else [rest, *block.text]
        # Entities stand for what the reader would take for its own, times and \N, until it has read.
        text = "\n".join(filter(str.strip, lines)).replace("\\", "&#0092;").replace(":", "&#0058;")
        parts.append(f"{number}\n{start} --> {end}\n{text}\n")
    return "\n".join([*parts, "0\n"])  # of each cue it drops the next one's number: so there is always one


def _mended_stamp(groups):
    minus, hours, minutes, seconds, fraction = groups
    if minus:
        return "00:00:00.000"
    return f"{hours or '0':0>2}:{minutes:0>2}:{seconds:0>2}.{(fraction or '0')[:3]:0<3}"


_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s+([^<>]+)>")
_BREAK = re.compile(r"(?i:<br\s*/?>)|\\N")  # \n would be the beginning of \nabla
_OVERRIDE = re.compile(r"\{(?:\\[^{}]*|[yYcCfFsSPH]:\S[^{}]*)\}")  # {\an8} of SSA, {y:i} of MicroDVD
_TAG = re.compile(
    r"</?\s*(?:[ibusc]|em|strong|ruby|rt|center|small|big|sub|sup|tt)(?:\.[^\s<>]*)?\s*/?>"
    r"|</?\s*(?:font|span|lang|v|p|div)(?:[.\s][^<>]*)?>|<[0-9:.]+>",
    re.IGNORECASE,
)
_VTT_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<[0-9:.]+>")  # a VTT file writes a real < as &lt;
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_NOTES = "(?:[\u2669-\u266c\U0001f3b5\U0001f3b6]\ufe0f?[^\\S\n]*)+"
_MUSIC = re.compile(
    rf"[\[(（【][^\S\n]*(?:{_NOTES}|music(?:[^\S\n]+playing)?[^\S\n]*|音[樂乐楽][^\S\n]*)[\])）】]|{_NOTES}",
    re.IGNORECASE,
)
_SUNG = re.compile(r"^[^\S\n]*#+(?=[^\S\n])([^#\n]*)[^\S\n]#+[^\S\n]*$", re.MULTILINE)  # "# la la la #"
_HARD_SPACE = re.compile(r"(?:\\h){2,}|\\h(?![a-z])")  # of converters from SSA; \hat is a formula's
_CONTROL = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\ufffe\uffff]"
)


def _bare(text, vtt):
    text = _OVERRIDE.sub("", _BREAK.sub("\n", text))
    return _HARD_SPACE.sub(" ", (_VTT_TAG if vtt else _TAG).sub("", text))


def _plain(text, _vtt=False):
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text)


def _unsung(text, _vtt):
    return _MUSIC.sub(" ", _SUNG.sub(r"\1", text))


# In this order: &lt;b&gt; is what somebody says about markup, and no markup.
_CLEANING = (
    ("markup", "removed", _bare),
    ("HTML entity", "resolved", _plain),
    ("music mark", "removed", _unsung),
    ("control character", "removed", lambda text, _vtt: _CONTROL.sub("", text)),
)


# ------------------------------------------------------------------------------------------------------------ speakers

_LABEL = re.compile(r"(?:>>+\s*|[-–—]\s+)?([^\W\d_][\w.'’ -]{0,30}?) ?[:\uff1a](?!//)\s*(?=\S)")
_CHANGE = re.compile(r"^>>+\s*(?=\S)")
_ROLE = re.compile(
    r"(?i:professor|prof\.?|teacher|lecturer|instructor|student|speaker|host|moderator|interviewer|audience|narrator|man"
    r"|woman)(?: (?:[A-Z][\w.'’-]*|[0-9]+)){0,2}"
    "|.{0,4}(?:老師|老师|教授|講者|讲者|講師|讲师|主持人|學生|学生|同學|同学|先生|女士)"
)


def _labelled(cues, places, note):
    """`cues` with speaker labels taken from their texts: in capitals, a role, or a name that begins several cues."""
    labels = [_LABEL.match(cue.text) for cue in cues]
    times = Counter(label[1] for label in labels if label)
    named = []
    for cue, label in zip(cues, labels, strict=True):
        if label and not cue.speaker and _is_name(label[1], times[label[1]]):
            cue = cue._replace(text=cue.text[label.end() :], speaker=label[1])
            note(places[cue.number - 1], "speaker label", "kept apart")
        elif (text := _CHANGE.sub("", cue.text)) != cue.text:
            cue = cue._replace(text=text)
            note(places[cue.number - 1], "speaker change mark", "removed")
        named.append(cue)
    return named


def _is_name(label, times):
    words = label.split()
    if label.isupper() or _ROLE.fullmatch(label):
        return True
    return times > 1 and len(words) <= 3 and len(label) <= 24 and all(not w[0].islower() for w in words)


# ----------------------------------------------------------------------------------------------------- order of time


def _in_order(cues, blocks, note):
    """`cues` by start; those out of order and those that overlap are noted, lines that rolling captions repeat go."""
    latest_start = latest_end = -1
    for cue in cues:
        if cue.start_ms < latest_start:
            note(_place(cue, blocks), "out of order", "sorted")
        latest_start = max(latest_start, cue.start_ms)
    cues = _unrolled(sorted(cues, key=lambda cue: cue.start_ms), blocks, note)
    for cue in cues:
        if cue.start_ms < latest_end:
            note(_place(cue, blocks), "overlaps one before it", "kept")
        latest_end = max(latest_end, cue.end_ms)
    return cues


def _place(cue, blocks):
    return f"cue {cue.number} (line {blocks[cue.number - 1].line})"


def _unrolled(cues, blocks, note):
    """Rolling captions show each line again above the next one: there, and only there, what is repeated is left out."""
    lines = [cue.text.split("\n") for cue in cues]
    repeated = [0] * len(cues)
    for i in range(1, len(cues)):
        if cues[i].start_ms - cues[i - 1].end_ms <= 100:
            most = min(len(lines[i - 1]), len(lines[i]), 4)
            repeated[i] = next((k for k in range(most, 0, -1) if lines[i - 1][-k:] == lines[i][:k]), 0)
    rolling = sum(0 < k < len(some) for k, some in zip(repeated, lines, strict=True))
    if rolling < 3 or 4 * rolling < len(cues):
        return cues
    kept = []
    for cue, k, some in zip(cues, repeated, lines, strict=True):
        if k:
            note(_place(cue, blocks), "line shown before", "left out")
        if some[k:]:
            kept.append(cue._replace(text="\n".join(some[k:])))
    return kept
