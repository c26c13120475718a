"""What numbers and names may be, as the document tells it. They are checked where they mean something, in `core`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from qo.core.durations import LONGEST
from qo.core.lease import CLAIM_BYTES_LIMIT, CLAIM_LIMIT
from qo.core.message import PRIORITY_LIMIT
from qo.core.names import KEY_LIMIT, NAME_LIMIT
from qo.core.retry import MOST_ATTEMPTS


def _schema(**schema: Any) -> Meta:
    return Meta(extra_json_schema=schema)


NO_CONTROL = r"^[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$"
MOST_SECONDS = LONGEST.total_seconds()

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A lane, an offset: what fits into a store."""
Name = Annotated[str, _schema(minLength=1, maxLength=NAME_LIMIT, pattern=NO_CONTROL)]
Key = Annotated[str, _schema(minLength=1, maxLength=KEY_LIMIT, pattern=NO_CONTROL)]
Id = Annotated[str, _schema(format="uuid")]
Base64 = Annotated[str, _schema(contentEncoding="base64")]
Priority = Annotated[int, _schema(minimum=-PRIORITY_LIMIT, maximum=PRIORITY_LIMIT)]
Count = Annotated[int, _schema(minimum=1, maximum=CLAIM_LIMIT)]
Attempts = Annotated[int, Meta(ge=1, le=MOST_ATTEMPTS)]
Bytes = Annotated[int, _schema(minimum=1, maximum=CLAIM_BYTES_LIMIT)]
Seconds = Annotated[float, _schema(exclusiveMinimum=0, maximum=MOST_SECONDS)]
Delay = Annotated[float, _schema(minimum=0, maximum=MOST_SECONDS)]
