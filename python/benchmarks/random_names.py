"""Writes databases whose names are random letters, and questions that only copying answers.

    python python/benchmarks/random_names.py names 40
    sqlenv data import names/data --questions names/questions.jsonl \
        --database names/databases/*.sqlite
    sqlenv eval --policy base --data names/data --databases all --split eval --questions 400

Give a new folder, the number of databases and, for other letters than a to z, the letters. Each
database has two tables and ten questions. No name has a meaning, so a policy answers only if it
copies names from the question and from DESCRIBE, letter by letter.
"""

import json
import random
import sqlite3
import string
import sys
from pathlib import Path

ROWS = 12


def names(rng: random.Random, count: int, alphabet: str) -> list[str]:
    """Distinct strings of four to ten letters, one in three with an underscore."""
    found: dict[str, None] = {}
    while len(found) < count:
        letters = [rng.choice(alphabet) for _ in range(rng.randint(4, 10))]
        if len(letters) > 5 and rng.random() < 1 / 3:
            letters[rng.randint(2, len(letters) - 3)] = "_"
        found["".join(letters)] = None
    return list(found)


def questions(
    table: str, key: str, number: str, text: str, rows: list[tuple]
) -> list[tuple[str, str]]:
    """Five questions about a table, with their SQL."""
    row, other = rows[0], rows[1]
    return [
        (f"How many {table} are there?", f"SELECT count(*) FROM {table}"),
        (f"What is the highest {number} of the {table}?", f"SELECT max({number}) FROM {table}"),
        (f"What is the average {number} of the {table}?", f"SELECT avg({number}) FROM {table}"),
        (
            f"What is the {number} of the {table} with the {text} {row[2]}?",
            f"SELECT {number} FROM {table} WHERE {text} = '{row[2]}'",
        ),
        (
            f"What is the {text} of the {table} whose {key} is {other[0]}?",
            f"SELECT {text} FROM {table} WHERE {key} = {other[0]}",
        ),
    ]


def write_database(
    folder: Path, rng: random.Random, name: str, alphabet: str
) -> list[dict[str, str]]:
    """Writes a database of two tables, and returns its questions."""
    connection = sqlite3.connect(folder / f"{name}.sqlite")
    records = []
    for _ in range(2):
        table, key, number, text = names(rng, 4, alphabet)
        connection.execute(
            f"CREATE TABLE {table} ({key} INTEGER PRIMARY KEY, {number} INT, {text} TEXT)"
        )
        words = names(rng, ROWS, alphabet)
        numbers = rng.sample(range(10, 1000), ROWS)
        rows = [(at + 1, numbers[at], words[at].replace("_", "")) for at in range(ROWS)]
        rng.shuffle(rows)
        connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
        for question, sql in questions(table, key, number, text, rows):
            record = {"question": question, "sql": sql, "database": name, "split": "eval"}
            records.append(record)
    connection.commit()
    connection.close()
    return records


def main() -> None:
    """Writes everything below the folder that is given."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    databases = folder / "databases"
    databases.mkdir(parents=True)
    rng = random.Random(0)
    alphabet = sys.argv[3] if len(sys.argv) > 3 else string.ascii_lowercase
    records = []
    for name in names(rng, count, string.ascii_lowercase):
        records.extend(write_database(databases, rng, name, alphabet))
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "questions.jsonl").write_text(lines)


if __name__ == "__main__":
    main()
