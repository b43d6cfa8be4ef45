"""Prompts as text for servers that accept no token ids. One common word is about one token."""

from __future__ import annotations

from harness.workloads.base import Segment
from harness.workloads.prompts.token_ids import draw_token_ids

# Common English words that usual vocabularies contain as one token, with the space before them.
_COMMON = """
able about above across action after again against age ago air all allow almost alone along
already also although always among amount animal another answer any appear apply area arm around
arrive art ask away baby back bad bag ball bank base beat beautiful because become bed been
before began begin behind being believe below best better between big bird black blood blue
board boat body book born both bottom box boy branch bread break bridge bright bring broad broke
brother brought brown build built burn business but buy call came can capital captain car card
care carry case catch caught cause center central century certain chair chance change character
charge check chief child choose church circle city claim class clean clear climb clock close
cloth cloud coast coat cold color column come common company compare complete condition consider
contain continue control cook cool copy corn corner correct cost cotton could count country
course cover create cross crowd cry current cut dance danger dark day dead deal dear death
decide deep degree depend describe desert design determine develop did differ difficult direct
discuss distance divide doctor does dog dollar done door double down draw dream dress drink
drive drop dry during each early earth ease east eat edge effect egg eight either electric
element else end enemy energy engine enjoy enough enter equal even evening event ever every
exact example except excite exercise expect experience experiment eye face fact fair fall family
famous far farm fast fat father favor fear feed feel feet fell felt few field fight figure fill
final find fine finger finish fire first fish fit five flat floor flow flower fly follow food
foot force forest form forward found four free fresh friend from front fruit full fun game
garden gas gather gave general gentle get girl give glad glass gold gone good got govern grand
grass gray great green grew ground group grow guess guide gun hair half hand happen happy hard
hat have head hear heard heart heat heavy held help her here high hill him his history hit hold
hole home hope horse hot hotel hour house how huge human hundred hunt hurry idea imagine inch
include increase indicate industry insect instant instrument interest invent iron island job
join joy jump just keep kept key kill kind king knew know lady lake land language large last
late laugh law lay lead learn least leave led left leg length less let letter level lie life
lift light like line liquid list listen little live local log lone long look lost lot loud love
low machine made magnet main major make man many map mark market mass master match material
matter may mean measure meat meet melody men metal method middle might mile milk million mind
mine minute miss mix modern molecule moment money month moon more morning most mother motion
mount mountain mouth move much multiply music must name nation natural nature near necessary
neck need neighbor never new next night nine noise noon north nose note nothing notice noun now
number object observe occur ocean off offer office often oil old once one only open operate
opposite orange order original other our out over own oxygen page paint pair paper paragraph
parent part particular party pass past path pattern pay people perhaps period person phrase pick
picture piece pitch place plain plan plane planet plant play please plural point poor populate
port pose position possible pound power practice prepare present press pretty print probable
problem process produce product proper property protect prove provide pull push put quart
question quick quiet quite race radio rail rain raise
"""
WORDS = tuple(_COMMON.split())


def prompt_text(prompt: tuple[Segment, ...]) -> str:
    """Return `prompt` as words separated by spaces, one word for each token.

    As with token ids, segments of the same text share their first words, and unrelated texts share
    a sequence of words only by chance. The server reports the real number of tokens in `usage`.
    """
    # A vocabulary below 2000 uses the ids of its upper half.
    return " ".join(
        [WORDS[number] for number in (draw_token_ids(prompt, 2 * len(WORDS)) % len(WORDS)).tolist()]
    )
