"""Write docs/reference/spark-options.md from the table of the connector's options.

python tools/spark_options_page.py            rewrite the page
python tools/spark_options_page.py --check    fail when the page is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.spark import option_table as table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "spark-options.md"

HEAD = """\
# Options of `format("headrace")`

Names count without their case. An option that is not here, a value that cannot be, and two options
that contradict each other are errors that say what would be right.
"""

COLUMNS = """
## Columns

| column | type | |
|---|---|---|
| `topic` | STRING | |
| `seq` | BIGINT | |
| `ts` | TIMESTAMP | |
| `node`, `tag` | STRING | null: none |
| `meta` | STRING | JSON; null: none |
| `data` | BINARY | by `dataFormat` and `schema` also STRING, VARIANT or STRUCT |
| `gap` | STRUCT<first BIGINT, last BIGINT, reason STRING> | what is lost, see below |
| `kind` | STRING | of `data`: `json`, `bytes`, or `command` of the S2 protocol |
| `content_type` | STRING | of the stream that the topic is; null: it is none |
| `headers` | ARRAY<STRUCT<name BINARY, value BINARY>> | of the record, in their order; null: none |

`gap` is there with `failOnDataLoss=false`; a row that has one has nothing else but `topic`. `kind`,
`content_type` and `headers` are there when `columns` names them. `.schema(...)` says the same as
`columns`, `dataFormat` and `schema` together: it names columns of these, and `data` with the type
that is wanted. No column can be NOT NULL. With `dataFormat=json` the text is what was written;
records that were written as bytes are only checked to be UTF-8.

## Values of typed data

With `schema` (or a STRUCT in `.schema(...)`) each record must be a JSON object, or `null`. A value
that does not fit its field makes a bad record (`badRecords`).

| type | what fits |
|---|---|
| BOOLEAN | true, false |
| TINYINT, SMALLINT, INT, BIGINT | a number without point and exponent, within range |
| FLOAT, DOUBLE | a number that is not too large |
| DECIMAL(p, s) | a number, or one in quotes, that fits without rounding |
| STRING | a text |
| DATE | a text such as 2026-01-31 |
| TIMESTAMP | a text of ISO 8601; without an offset it is UTC; microseconds are cut, not rounded |
| TIMESTAMP_NTZ | the same without an offset |
| ARRAY, STRUCT, MAP<STRING, ...> | an array, an object |

Fields are found by their exact names. Of two fields of one name the last counts. Records are read
many at a time. Where that is not possible, each is read by itself, with the same values, ten to
thirty times slower: with a MAP, with a DECIMAL of more than 18 places, around records that do not
fit, and with any DECIMAL around records that have a number with an exponent or with more than 18
digits.

This page is written by `python tools/spark_options_page.py`.
"""

SECTIONS = (
    ("Reading", table.READS),
    ("Writing", table.WRITES),
    ("The server", table.USES),
)


def section(title: str, uses: tuple[str, ...]) -> str:
    rows = ["| option | for | values | default | meaning |\n|---|---|---|---|---|\n"]
    for option in table.TABLE:
        everywhere = option.uses == table.USES
        if everywhere != (uses == table.USES) or not set(option.uses) <= set(uses):
            continue
        where = "all" if option.uses == uses else ", ".join(option.uses)
        default = option.default or "(none)"
        rows.append(f"| `{option.name}` | {where} | {option.values} | {default} | {option.doc} |\n")
    return f"\n## {title}\n\n{''.join(rows)}"


def page() -> str:
    return HEAD + "".join(section(title, uses) for title, uses in SECTIONS) + COLUMNS


if __name__ == "__main__":
    # Beside this file, where Python looks first when it runs it.
    from pages import main

    sys.exit(main(PAGE, page(), __file__))
