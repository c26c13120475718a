"""Numbers that Python and the functions share are written once, in Python."""

from __future__ import annotations

import re
from importlib.resources import files

from qo.stores.postgres import schema


def test_every_number_that_the_functions_name_is_given_and_used():
    left = re.findall(r"\{[a-z_]+\}", schema.functions())
    assert left == []

    texts = "".join((files("qo.stores.postgres") / "sql" / f"{name}.sql").read_text() for name in schema.FUNCTIONS)
    assert {name for name in schema.CONSTANTS if f"{{{name}}}" not in texts} == set()
