"""Prints the candidates for a list of words, or checks the lists of this folder.

    make.py candidates things|describers --wordnet DIR --scowl DIR
    make.py check

The candidates come from WordNet 3.0 (Debian wordnet-base 1:3.0-37, /usr/share/wordnet) and SCOWL
(Debian scowl 2020.12.07-2, /usr/share/dict/scowl). The lists are these candidates after every word
was read: unsuitable words were removed and words of software and trade were added by hand.
"""

import argparse
import collections
import itertools
import pathlib
import re
import sys
import tomllib

HERE = pathlib.Path(__file__).parent
DOMAINS = HERE.parent / "domains"
HELD_OUT = ["farm", "festival", "harbor"]
# For each list, the lexicographer files of WordNet that the first sense of a word may be in.
KINDS = {
    "things": {
        4: "act",
        5: "animal",
        6: "artifact",
        9: "cognition",
        10: "communication",
        11: "event",
        13: "food",
        14: "group",
        15: "location",
        17: "object",
        18: "person",
        20: "plant",
        21: "possession",
        23: "quantity",
        25: "shape",
        26: "state",
        27: "substance",
    },
    "describers": {0: "adjective", 1: "adjective", 44: "adjective"},
}
ACTIONS = {"answer", "sample", "question"}
SQL = """
abort action add after all alter always analyze and any as asc attach autoincrement avg before
begin between bigint blob boolean by cascade case cast char check clob collate column commit
conflict constraint count create cross current database date datetime day decimal default
deferrable deferred delete desc describe detach distinct do double drop each else end escape
except exclude exclusive exists explain fail false filter first float following for foreign from
full function generated glob group groups having hour if ignore immediate in index indexed
initially inner insert instead int integer intersect into is isnull join key keys last left like
limit match materialized max min minute month natural no not nothing notnull null nulls number
numeric of offset on or order others outer over partition plan pragma preceding primary procedure
query raise range real recursive references regexp reindex release rename replace restrict return
returning right rollback round row rows sample savepoint schema second select set smallint
statement string sum table temp temporary text then ties time timestamp tinyint to total
transaction trigger true unbounded union unique update user using vacuum values varchar view
virtual when where window with within without year
""".split()
# Function words in the phrases of the held-out domains, which are not held out.
SMALL = set(
    "a above after and are at before below by fewer for from in less more new number of old on one"
    " or than the time to under with".split()
)


def plural(word):
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|x|z|ch|sh)$", word) else "s")


def words_of(value):
    """All words in the strings of a TOML value."""
    if isinstance(value, str):
        return set(re.findall("[a-z]+", re.sub(r"\{[^}]*\}", " ", value.lower()).replace("_", " ")))
    if isinstance(value, dict):
        value = value.values()
    return set().union(*map(words_of, value)) if hasattr(value, "__iter__") else set()


def forms(words):
    """The words, their plurals, and what they are plurals of."""
    words = set(words)
    for word in list(words):
        words |= {plural(word), re.sub("s$", "", word), re.sub("ies$", "y", word)}
        words.add(re.sub("(ch|sh|s|x)es$", r"\1", word))
    return words


def read(name):
    return tomllib.loads((DOMAINS / f"{name}.toml").read_text())


def held_out():
    """Names, values and phrases of the domains that are never trained on."""
    lists, found = read("words"), {"harbour"}
    # Lists of words that only these domains use are held out with them.
    used = {True: set(), False: set()}
    for path in DOMAINS.glob("*.toml"):
        for table in read(path.stem).get("tables", []):
            for column in table["columns"]:
                names = set(column.get("label", [])) | {column.get("words")}
                used[path.stem in HELD_OUT] |= names
    for name in HELD_OUT:
        domain = read(name)
        found |= {name}
        for table in domain["tables"]:
            found |= words_of([table["name"], table["one"]])
            for column in table["columns"]:
                own = column.keys() - {"label", "words", "parent"}
                found |= words_of([column[key] for key in own])
    found |= words_of([lists[n] for n in used[True] - used[False] if n])
    return forms(found - SMALL)


def grammar():
    """The words of the questions that the query grammar writes."""
    return set().union(*(words_of(template["words"]) for template in read("grammar")["templates"]))


def scowl(folder, levels):
    """The words of SCOWL at the given levels, the most common ones first."""
    words = set()
    for variant in ("english", "american", "british"):
        for level in levels:
            words |= set((folder / f"{variant}-words.{level}").read_text("latin-1").split())
    return words


def reserved():
    """Words that are SQL, or that a question or an action has anyway."""
    return forms(SQL) | grammar() | ACTIONS


def candidates(name, wordnet, folder):
    """Common words with a first sense of the right kind, with it and any irregular plural."""
    known = scowl(folder, [10, 20, 35])
    common = known - reserved() - held_out()
    irregular = collections.defaultdict(list)
    for line in (wordnet / "noun.exc").open():
        many, one = line.split()[:2]
        irregular[one].append(many)
    part = "noun" if name == "things" else "adj"
    files = {}
    for line in (wordnet / f"data.{part}").open():
        if line[0] != " ":
            files[line[:8]] = int(line[9:11])
    # Adjectives are only those that occur in the texts that WordNet's authors tagged.
    keys = [line.split("%") for line in (wordnet / "cntlist.rev").open()]
    tagged = {word for word, sense in keys if sense[0] in "35"}
    found = {}
    for line in (wordnet / f"index.{part}").open():
        if line[0] == " ":
            continue
        # An index line ends with the offsets of the word's senses, the most frequent sense first.
        fields = line.split()
        word, kind = fields[0], KINDS[name].get(files[fields[-int(fields[2])]])
        if not kind or not re.fullmatch("[a-z]{3,12}", word) or word not in common:
            continue
        if part == "adj" and word not in tagged:
            continue
        many = [form for form in irregular[word] + [plural(word)] if form in known]
        if name == "things" and not many:
            continue
        found[word] = (kind, many[0] if many and many[0] != plural(word) else "")
    return found


def check():
    """Prints what is wrong with each list, and says whether nothing is."""
    taken, kept_out, clean = reserved(), held_out(), True
    for path in sorted(HERE.glob("*.txt")):
        head, *body = path.read_text().splitlines()
        problems = [] if head.startswith("# ") else ["no header"]
        problems += [f"{b!r} is not in order" for a, b in itertools.pairwise(body) if a >= b]
        for line in body:
            words = line.split()
            if path.stem == "attributes":
                if words[1:] not in (["number"], ["text"]):
                    problems.append(f"{line!r} has no kind")
                words = words[:1]
            for word in words:
                if not re.fullmatch("[a-z]{1,12}", word):
                    problems.append(f"{word!r} is malformed")
                if path.stem != "synonyms" and word in kept_out:
                    problems.append(f"{word!r} is held out")
                loose = path.stem in ("synonyms", "abbreviations", "relations")
                if not loose and (word in taken or len(word) < 3):
                    problems.append(f"{word!r} is reserved or short")
        keys = [line if path.stem == "relations" else line.split()[0] for line in body]
        repeated = [key for key, count in collections.Counter(keys).items() if count > 1]
        problems += [f"{key!r} occurs twice" for key in repeated]
        print(f"{path.name}: {len(body)} lines, {len(problems)} problems")
        for problem in problems:
            print(f"  {problem}")
        clean = clean and not problems
    return clean


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("candidates")
    listing.add_argument("list", choices=KINDS)
    listing.add_argument("--wordnet", type=pathlib.Path, default="/usr/share/wordnet")
    listing.add_argument("--scowl", type=pathlib.Path, default="/usr/share/dict/scowl")
    commands.add_parser("check")
    options = parser.parse_args()
    if options.command == "check":
        sys.exit(0 if check() else 1)
    found = candidates(options.list, options.wordnet, options.scowl)
    for word, (kind, many) in sorted(found.items()):
        print(kind, word, many)
