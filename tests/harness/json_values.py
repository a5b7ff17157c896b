"""Hypothesis strategies for any JSON, for values of a JSON schema, and for almost valid values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**70), 10**300]),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.sampled_from(["", "w0", "w1", "\ud800", "\x00", "../..", "a" * 1000]),
)
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def matching(schema: Schema, components: dict[str, Schema]) -> st.SearchStrategy[Any]:
    """Returns a strategy for the values that a schema, as written by msgspec, allows."""
    if "$ref" in schema:
        return matching(components[schema["$ref"].rpartition("/")[2]], components)
    if "anyOf" in schema:
        return st.one_of([matching(option, components) for option in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object":
            return _objects(schema, components)
        case "array":
            return st.lists(matching(schema.get("items") or {}, components), max_size=3)
        case "string":
            return st.sampled_from(["w0", "w1", "w7"]) | st.text(max_size=20)
        case "integer":
            small = st.integers(0, 3)
            return small | st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            return st.floats(schema.get("minimum", -1e12), schema.get("maximum", 1e12))
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return ANY


def _objects(schema: Schema, components: dict[str, Schema]) -> st.SearchStrategy[Any]:
    fields = {n: matching(s, components) for n, s in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: values for name, values in fields.items() if name in required},
        optional={name: values for name, values in fields.items() if name not in required},
    )


@st.composite
def nearly(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> Any:
    """Draws values with one thing wrong somewhere: a field that is missing, strange or too much."""
    value = draw(values)
    place = value
    while isinstance(place, dict) and place:
        name = draw(st.sampled_from(sorted(place)))
        if isinstance(place[name], dict) and draw(st.booleans()):
            place = place[name]
            continue
        match draw(st.sampled_from(["missing", "strange", "too much"])):
            case "missing":
                del place[name]
            case "strange":
                place[name] = draw(ANY)
            case _:
                place[draw(st.text(max_size=5))] = draw(ANY)
        return value
    return draw(ANY)
