"""The OpenAPI document of the requests to the page's server that are for other programs: the past, and displays."""

from typing import Any, Final

MOST_POINTS: Final = 2000
POINTS: Final = 600
MOST_ATTRIBUTES: Final = 8
LONGEST_DAYS: Final = 8
MOST_DIFFERENCES: Final = 500
MOST_STEPS: Final = 60
LONGEST_STEPS: Final = 600
"""Bounds of a history, of a comparison, and of steps, of which the last one is their time together [s];
`sdp_facade_clients.web.archived` keeps them."""
_TIME: Final = {"type": "string", "format": "date-time"}
_NUMBER: Final = {"type": ["number", "null"]}
_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_UNKNOWN: Final = _TEXTS | {"description": "What is not known, with the reason."}


def _object(properties: dict[str, Any], *optional: str, **more: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


def _list(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _given(name: str, description: str, schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


def _count(most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": most}


_QUALITY: Final = {"enum": ["VALID", "WARNING", "ALARM", "INVALID"]}
_ROW: Final = _object(
    {
        "time": _TIME | {"description": "Begin of the bin, UTC."},
        "min": _NUMBER,
        "max": _NUMBER,
        "mean": _NUMBER | {"description": "Weighted by the time for which each value was shown."},
        "last": {"description": "Value shown last in the bin; a State or an enumerated value is its label."},
        "quality": {"enum": [*_QUALITY["enum"], None], "description": "The worst in the bin; null: a gap."},
    },
    description="One bin. Only valid values count; without one, all are null.",
)
_HISTORY: Final = _object(
    {
        "begin": _TIME,
        "end": _TIME,
        "bin": {"type": "number", "description": "Length of a bin [s]."},
        "series": _list(
            _object(
                {"device": {"type": "string"}, "attribute": {"type": "string"}, "unit": {"type": "string"}}
                | {"rows": _list({"$ref": "#/components/schemas/Row"}, maxItems=MOST_POINTS)}
            )
        ),
    }
)
_VALUE: Final = {
    "type": "array",
    "prefixItems": [{"description": "Value."}, _QUALITY, {"type": "number"}, {"const": ""}],
    "description": "Value, quality, time of the data [Unix s], and an empty text.",
}
_ENTRIES: Final = {"type": ["array", "null"], "items": {"type": "object"}}
_MOMENT: Final = _object(
    {
        "time": {"type": "number", "description": "The second [Unix s]."},
        "begin": {"type": "number", "description": "Time of the archive's first record [Unix s]."},
        "end": {"type": "number", "description": "Time of its last record [Unix s]."},
        "values": {
            "type": "object",
            "description": "By device and attribute.",
            "additionalProperties": {"type": "object", "additionalProperties": _VALUE},
        },
        "alarms": _ENTRIES | {"description": "Alarms that were not at rest, as of GetAlarms."},
        "alerts": _ENTRIES | {"description": "The newest entries of the alert log in the hour before."},
        "commands": {
            "type": ["object", "null"],
            "description": "By device, the newest first, as of GetCommandHistory.",
            "additionalProperties": _list({"type": "object"}),
        },
        "commands_back": {"type": "number", "description": "Time before, of which commands are given [s]."},
        "nodes": {
            "type": "object",
            "description": "Figures of the ingest nodes, each by the number of the node.",
            "additionalProperties": _list(_NUMBER),
        },
        "judgement": {"type": ["object", "null"], "description": "Whether all was well, as of `sdp-facade status`."},
        "unknown": _TEXTS | {"description": "What the archive does not tell, with the reason."},
        "steps": _list(
            {"type": "object"},
            description="What differs at each later step, up to the end of the archive: parts as above, but of `values`"
            " only those that changed, null if they are no longer known, and of `nodes` the same, by number.",
        ),
    }
)
_COMMAND: Final = {"type": "object", "description": "As of GetCommandHistory."}
_SECONDS: Final = {"type": "number", "description": "[Unix s]"}
_TEXT: Final = {"type": "string"}


def _entry(*texts: str, **more: Any) -> dict[str, Any]:
    return _object({"time": _SECONDS, **dict.fromkeys(texts, _TEXT), **more})


_HAPPENED: Final = {
    "begin": _SECONDS,
    "end": _SECONDS,
    "commands": _list(_COMMAND),
    "obs_states": {
        "type": "object",
        "description": "By subarray, when it got which observing state; the first one is that at the begin.",
        "additionalProperties": _list({"type": "array", "prefixItems": [_SECONDS, _TEXT]}),
    },
    "alarms": _list(_entry("condition", "source", "severity", "state", "text")),
    "tables": _list(_entry("product", "table", "kind", "state", size={"type": "integer"})),
    "blocks": _list(_entry("pb_id", "eb_id", "kind", "state", "text", subarray={"type": "integer"})),
    "gaps": _list(_list(_SECONDS), description="Begin and end of each time without records of the device."),
    "unknown": _UNKNOWN,
}
_SHOWN: Final = _object({"value": {}, "quality": _QUALITY}) | {
    "type": ["object", "null"],
    "description": "Null: the archive has no value of that time.",
}
_DIFFERENCES: Final = {
    "time": _SECONDS,
    "against": _SECONDS,
    "what": _TEXT | {"description": "What the time is that it is compared with."},
    "compared": {"type": "integer", "description": "Number of attributes."},
    "different": {"type": "integer", "description": "Number of those that differ; the farthest are given."},
    "rows": _list(
        _object(
            {"device": _TEXT, "attribute": _TEXT, "unit": _TEXT, "before": _SHOWN, "after": _SHOWN}
            | {"moved": {"type": "number", "description": "Share of the room to the next limit, or of the value."}}
        ),
        maxItems=MOST_DIFFERENCES,
    ),
}
_BLOCK: Final = {"id": _TEXT, "device": _TEXT | {"description": "The subarray."}}
_DISPLAY_ID: Final = {"type": "string", "pattern": "^[0-9A-Za-z-]{1,64}$"}
_MODEL: Final = {"type": "object", "description": "The object of Open MCT, without its identifier."}
_SAVED: Final = {
    "person": _TEXT | {"description": "Who saved this version."},
    "time": _NUMBER | {"description": "When [Unix s]."},
}
_NUMBERED: Final = {"type": "integer", "minimum": 0, "description": "Number of the version; 0: there is none."}
_DISPLAY: Final = _object(
    {"id": _DISPLAY_ID, "version": _NUMBERED} | _SAVED | {"model": _MODEL | {"type": ["object", "null"]}}
)
_SPAN: Final = [
    _given("begin", "ISO 8601, UTC unless it has a zone.", _TIME),
    _given("end", f"Up to {LONGEST_DAYS} days after the begin.", _TIME),
]
_PATHS: Final = {
    "/api/timeline": (
        "What happened in a span of time",
        "Commands, observing states, alarms, tables and states of processing blocks, each in the order of time.",
        "Timeline",
        [*_SPAN, _given("device", "A device whose gaps are wanted.", {"type": "string"}, required=False)],
    ),
    "/api/execution-blocks": (
        "The execution blocks of the last days",
        "The newest first; the end is null while the subarray has it. An id that was used again comes again.",
        "ExecutionBlocks",
        [_given("days", "Default: 7.", {"enum": ["1", "7", "30"]}, required=False)],
    ),
    "/api/execution-block": (
        "What happened in an execution block",
        "Between its first and its last record, with commands and tables of its subarray, and its processing blocks.",
        "ExecutionBlock",
        [_given("id", "Such as eb-mvp01-20261123-00001.", {"type": "string"})],
    ),
    "/api/differences": (
        "What differs between two seconds",
        "Tolerances follow from the interface; a total is not compared.",
        "Differences",
        [
            _given("time", "ISO 8601; default: the newest second of the archive.", _TIME, required=False),
            _given(
                "against",
                "A time, `yesterday` at the same time, or `last-scan`: the end of the last scan that ended well.",
                {"anyOf": [{"enum": ["yesterday", "last-scan"]}, _TIME]},
            ),
        ],
    ),
    "/api/history": (
        "What attributes of a device showed, in bins of equal length",
        "A value holds until the next one. Gaps stay gaps: rows of nulls.",
        "History",
        [
            _given("device", "Such as mid-sdp/ingest/0003.", {"type": "string"}),
            _given(
                "attribute",
                "Such as heapRate; may be repeated.",
                _list({"type": "string"}, minItems=1, maxItems=MOST_ATTRIBUTES),
            ),
            *_SPAN,
            _given(
                "points",
                "Number of bins.",
                _count(MOST_POINTS) | {"default": POINTS},
                required=False,
            ),
        ],
    ),
    "/api/at": (
        "What all devices showed at a second",
        "Of a class with more than 64 devices, State only, and all of the device that is asked for.",
        "Moment",
        [
            _given("time", "ISO 8601; default: the newest second of the archive.", _TIME, required=False),
            _given("device", "A device of which all values are wanted.", {"type": "string"}, required=False),
            _given("step", "Time from step to step [s]; default: 1.", _count(LONGEST_STEPS), required=False),
            _given("count", f"Steps, of {LONGEST_STEPS} s at most; default: 1.", _count(MOST_STEPS), required=False),
        ],
    ),
    "/api/display": (
        "A display that all browsers share",
        "As saved last, or a version that is still kept. The folder of all displays has the id `root`.",
        "Display",
        [
            _given("id", "Id of the object in Open MCT.", _DISPLAY_ID),
            _given("version", "Default: the newest.", {"type": "integer", "minimum": 1}, required=False),
        ],
    ),
    "/api/display-versions": (
        "The versions of a display that are kept",
        "The newest first.",
        "DisplayVersions",
        [_given("id", "Id of the object in Open MCT.", _DISPLAY_ID)],
    ),
}
_SAVE: Final = {
    "summary": "Save a display",
    "description": "For operators, from the page itself. A folder gets the members that others have added meanwhile.",
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": _object(
                    {
                        "id": _DISPLAY_ID,
                        "version": _NUMBERED | {"description": "The version that was changed; 0: there is none."},
                        "model": _MODEL,
                    }
                )
            }
        },
    },
}
_SAVE_ERRORS: Final = {
    "403": "The person is no operator, or the request is not from the page.",
    "409": "The display has a newer version, there are too many, or the page shows the past.",
    "413": "The body is larger than a megabyte.",
    "415": "The body is not JSON.",
}
_ERRORS: Final = {
    "400": "A parameter is wrong, or the archive has nothing of that time; the text says which.",
    "403": "A page of another site asks.",
    "404": "The server has no archive, or keeps no displays.",
    "502": "The store of the archive, or the folder of displays, does not answer.",
    "429": "Too many requests; try again in a moment.",
}


def document() -> dict[str, Any]:
    """Return the document."""

    def content(name: str, description: str) -> dict[str, Any]:
        schema = {"$ref": f"#/components/schemas/{name}"}
        return {"description": description, "content": {"application/json": {"schema": schema}}}

    def errors(texts: dict[str, str]) -> dict[str, Any]:
        return {status: content("Error", text) for status, text in texts.items()}

    paths: dict[str, Any] = {
        path: {
            "get": {
                "summary": summary,
                "description": description,
                "parameters": parameters,
                "responses": {"200": content(name, summary), **errors(_ERRORS)},
            }
        }
        for path, (summary, description, name, parameters) in _PATHS.items()
    }
    saved = {"200": content("Display", "The version that is the newest now."), **errors(_ERRORS | _SAVE_ERRORS)}
    paths["/api/display"]["post"] = _SAVE | {"responses": saved}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Operator's page of the SDP facade",
            "version": "1",
            "description": "The past of the deployment, from its archive, and displays that all browsers share. Other"
            " requests are the page's own, and may change with each release.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Row": _ROW,
                "History": _HISTORY,
                "Moment": _MOMENT,
                "Differences": _object(_DIFFERENCES),
                "Timeline": _object(_HAPPENED),
                "ExecutionBlocks": _object(
                    {"blocks": _list(_object(_BLOCK | {"begin": _SECONDS, "end": _NUMBER})), "unknown": _UNKNOWN}
                ),
                "ExecutionBlock": _object(_BLOCK | {"is_open": {"type": "boolean"}} | _HAPPENED),
                "Display": _DISPLAY,
                "DisplayVersions": _list(_object({"name": _TEXT, "id": _DISPLAY_ID, "version": _NUMBERED} | _SAVED)),
                "Error": _object({"error": {"type": "string"}}),
            }
        },
    }
