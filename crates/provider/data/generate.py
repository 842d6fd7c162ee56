#!/usr/bin/env python3
"""Writes models.tsv from a snapshot of models.dev.

usage: generate.py SNAPSHOT.json > models.tsv

The snapshot is models.dev's api.json reduced to {"providers": {id: {name, env, api, models}}}; the columns of
the result are described in README.md.
"""

import json
import sys
from decimal import Decimal


def price(cost, name):
    """Microdollars for a million tokens, or nothing."""
    value = cost.get(name)
    if value is None:
        return ""
    micro = Decimal(str(value)) * 1_000_000
    # Some prices carry the noise of a float.
    assert micro >= 0 and abs(micro - round(micro)) < Decimal("0.1"), (name, value)
    return str(round(micro))


def prices(cost):
    return [price(cost, name) for name in ("input", "output", "cache_read", "cache_write", "reasoning")]


def main():
    snapshot = json.load(open(sys.argv[1]), parse_float=Decimal)
    print(f"# models.dev, snapshot of {snapshot['snapshot_last_updated']}; see README.md")
    for provider_id in sorted(snapshot["providers"]):
        provider = snapshot["providers"][provider_id]
        print("\t".join(["@" + provider_id, provider["name"], ",".join(provider["env"]), provider.get("api", "")]))
        for model_id in sorted(provider["models"]):
            model = provider["models"][model_id]
            limit, cost = model["limit"], model.get("cost", {})
            flags = "".join(
                flag
                for flag, field in (("r", "reasoning"), ("t", "tool_call"), ("s", "structured_output"))
                if model.get(field)
            )
            tiers = [
                ":".join([str(tier["tier"]["size"])] + prices(tier))
                for tier in sorted(cost.get("tiers", []), key=lambda tier: tier["tier"]["size"])
                if tier["tier"]["type"] == "context"
            ]
            limits = [str(limit.get(name) or "") for name in ("context", "input", "output")]
            columns = [model_id, *limits, flags, *prices(cost), ";".join(tiers)]
            assert not any("\t" in column or "\n" in column for column in columns)
            print("\t".join(columns).rstrip("\t"))


main()
