"""Counts runs, exactly once: the number and the position are stored together."""

import sqlite3
from greenroom_client import Client

database = sqlite3.connect("bill.db")
database.execute("CREATE TABLE IF NOT EXISTS bill (id INTEGER PRIMARY KEY, runs INTEGER, position TEXT)")
runs, position = database.execute("SELECT runs, position FROM bill").fetchone() or (0, None)
for batch in Client().consume("billing", commit=position):
    runs += sum(event["type"] == "run_end" for event in batch["events"])
    with database:
        database.execute("INSERT OR REPLACE INTO bill VALUES (1, ?, ?)", (runs, batch.get("position")))
    print(runs, "runs")
