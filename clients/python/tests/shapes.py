"""Compares values with the types that describe them."""

from __future__ import annotations

import typing as t

from greenroom_client import types


def problems(value: t.Any, of: t.Any, place: str = "") -> t.List[str]:
    """Why a value is not of a type; empty if it is."""
    origin, parts = t.get_origin(of), t.get_args(of)
    if of is t.Any:
        return []
    if isinstance(of, (t.ForwardRef, str)):
        name = of if isinstance(of, str) else of.__forward_arg__
        return problems(value, eval(name, vars(types)), place)
    if origin is t.Union:
        tried = [problems(value, part, place) for part in parts]
        return min(tried, key=len) if all(tried) else []
    if origin is t.Literal:
        return [] if value in parts else [f"{place}: {value!r} is not one of {parts}"]
    if origin is list:
        found = [] if isinstance(value, list) else [f"{place}: no list"]
        return found or [problem for item in value for problem in problems(item, parts[0], place + "[]")]
    if origin is tuple:
        return [] if isinstance(value, list) and len(value) == len(parts) else [f"{place}: no tuple"]
    if origin is dict:
        return [] if isinstance(value, dict) else [f"{place}: no dictionary"]
    if t.is_typeddict(of):
        if not isinstance(value, dict):
            return [f"{place}: no object"]
        found = []
        hints = {}
        for base in of.__orig_bases__[::-1] if hasattr(of, "__orig_bases__") else ():
            if base is not t.TypedDict:
                hints.update(_fields(base))
        hints.update(_fields(of))
        for name, hint in hints.items():
            is_required = t.get_origin(hint) is not t.NotRequired
            if name in value:
                of_field = hint if is_required else t.get_args(hint)[0]
                found += problems(value[name], of_field, f"{place}.{name}")
            elif is_required:
                found.append(f"{place}.{name} is missing")
        return found + [f"{place}.{name} is unknown" for name in value if name not in hints]
    expected = (int, float) if of is float else of
    is_it = value is None if of in (None, type(None)) else isinstance(value, expected)
    return [] if is_it else [f"{place}: {value!r} is no {of}"]


def _fields(of: t.Any) -> t.Dict[str, t.Any]:
    fields: t.Dict[str, t.Any] = {}
    for base in getattr(of, "__orig_bases__", ()):
        if base is not t.TypedDict:
            fields.update(_fields(base))
    for name, hint in of.__annotations__.items():
        text = hint.__forward_arg__ if isinstance(hint, t.ForwardRef) else hint
        fields[name] = eval(text, vars(types)) if isinstance(text, str) else text
    return fields
