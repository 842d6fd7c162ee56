"""The client against a server: `python -m unittest discover -s tests`, with `src` in `PYTHONPATH`."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import typing as t
import unittest

from greenroom_client import (
    ApiError,
    Busy,
    Client,
    ConnectionFailed,
    GreenroomError,
    InvalidRequest,
    NotFound,
    Unauthorized,
)

from serving import Scripted, Server

PROBLEM = {"type": "about:blank", "title": "x", "detail": "no", "kind": "busy", "class": "other", "retryable": True}


def refusal(status: int) -> t.Tuple[int, t.Dict[str, str], str]:
    return status, {"Retry-After": "0"}, json.dumps({**PROBLEM, "status": status})


class WithServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server("--no-tools")
        cls.client = Client(cls.server.url, cls.server.token)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.client.close()
        cls.server.close()

    def test_every_operation(self) -> None:
        client = self.client
        prompted = client.session.prompt("s", text="first", settings={"temperature": 0.5}, timeout_s=60)
        self.assertEqual((prompted["entry_id"], prompted["stop"]), (0, "stop"))
        for _ in range(2):
            # Enough for a compaction.
            client.session.prompt("s", text="alpha beta gamma " * 1000)
        calls: t.List[t.Tuple[str, t.Dict[str, t.Any]]] = [
            ("session.start", {"session_id": "s"}),
            ("session.set_label", {"session_id": "s", "name": "user", "value": "ada"}),
            ("session.set_title", {"session_id": "s", "title": "A title"}),
            ("session.list", {"labels": {"user": "ada"}, "order": "newest", "counts": True}),
            ("session.get", {"session_id": "s"}),
            ("session.find", {"prefix": "s"}),
            ("session.show", {"session_id": "s"}),
            ("session.recall", {"query": "first"}),
            ("session.replay", {"session_id": "s", "limit": 100}),
            ("session.inbox", {"session_id": "s"}),
            ("session.clear_inbox", {"session_id": "s"}),
            ("session.context", {"session_id": "s"}),
            ("session.tree", {"session_id": "s"}),
            ("session.entries", {"session_id": "s", "from_": 0, "limit": 50}),
            ("session.live", {}),
            ("session.in_progress", {"session_id": "s"}),
            ("session.questions", {}),
            ("session.plan", {"session_id": "s", "keep_recent": 10}),
            ("session.compact", {"session_id": "s", "force": True, "keep_recent": 10}),
            ("session.compactions", {"session_id": "s"}),
            ("session.compaction", {"session_id": "s"}),
            ("session.undo_compaction", {"session_id": "s"}),
            ("session.pin", {"session_id": "s", "entry_id": 0}),
            ("session.pins", {"session_id": "s"}),
            ("session.fork", {"session_id": "s", "to": "fork"}),
            ("session.branch", {"session_id": "fork", "entry_id": None}),
            ("session.rewind", {"session_id": "s", "dry_run": True}),
            ("agent.state", {"session_id": "s"}),
            ("agent.tools", {}),
            ("agent.abort", {"session_id": "s"}),
            ("models.list", {}),
            ("models.forget", {"model": "none"}),
            ("consumer.read", {"name": "of-all", "max": 1000, "labels": {"user": "ada"}}),
            ("consumer.list", {}),
            ("consumer.delete", {"name": "of-all"}),
            ("session.steer", {"session_id": "s", "text": "more"}),
            ("session.follow_up", {"session_id": "s", "text": "and more"}),
            ("session.prompt_submit", {"session_id": "s", "text": "later", "key": "1"}),
            ("session.prompt", {"session_id": "s", "text": "later", "key": "1"}),
            ("session.delete", {"session_id": "fork"}),
            ("healthz", {}),
            ("readyz", {}),
            ("metrics", {}),
            ("openapi", {}),
        ]
        answers: t.Dict[str, t.Any] = {}
        for name, arguments in calls:
            method: t.Any = client
            for part in name.split("."):
                method = getattr(method, part)
            with self.subTest(name):
                answers[name] = answer = method(**arguments)
                if sys.version_info >= (3, 11):
                    from shapes import problems

                    returned = method.__annotations__["return"]
                    of = eval(returned, sys.modules[method.__module__].__dict__)
                    self.assertEqual(problems(answer, of, name)[:3], [])
        self.assertEqual(answers["session.prompt"]["entry_id"], answers["session.prompt_submit"]["entry_id"])
        exported = client.session.export("s")
        imported = client.session.import_("imported", text=exported["text"])
        self.assertEqual(imported["session_id"], "imported")
        listed = client.session.list(labels={"user": "ada"})["sessions"]
        self.assertEqual([session["id"] for session in listed], ["s"])
        self.assertEqual(client.session.get("s")["session"]["title"], "A title")

    def test_a_prompt_streams_its_answer(self) -> None:
        texts, numbers = [], []
        with self.client.session.prompt_stream("streamed", text="question") as stream:
            for event in stream:
                if event["type"] == "message_delta" and event["delta"]["kind"] == "text":
                    texts.append(event["delta"]["text"])
                if event["type"] not in ("gap", "problem") and "n" not in event:
                    numbers.append(event["seq"])
            reply = stream.outcome()
        self.assertTrue("".join(texts).endswith(reply["text"]), texts)
        self.assertGreater(len(texts), 1)
        self.assertEqual(numbers, list(range(len(numbers))))
        assert stream.accepted is not None and stream.position is not None
        self.assertEqual(stream.accepted.get("entry_id"), reply["entry_id"])
        with self.client.session.events("streamed", after=stream.position, durable=True) as later:
            self.client.session.set_title("streamed", title="new")
            item: t.Any = next(later)
            self.assertEqual(item["seq"], len(numbers), item["type"])

    def test_a_prompt_is_repeated_by_its_key(self) -> None:
        first = self.client.session.prompt("repeated", text="question", key="once")
        again = self.client.session.prompt("repeated", text="question", key="once")
        self.assertEqual((first["entry_id"], first["text"]), (again["entry_id"], again["text"]))
        other = self.client.session.prompt("repeated", text="question")
        self.assertNotEqual(other["entry_id"], first["entry_id"])

    def test_a_consumer_gets_what_it_did_not_commit_again(self) -> None:
        for number in range(2):
            self.client.session.prompt(f"consumed-{number}", text="question")
            self.client.session.set_label(f"consumed-{number}", name="for", value="consumer")

        def read(batches: int, commit: t.Optional[str] = None) -> t.List[t.Any]:
            found = []
            for batch in self.client.consume("audit", labels={"for": "consumer"}, max=1, commit=commit):
                found.append(([(event["session_id"], event["seq"]) for event in batch["events"]], batch.get("position")))
                if len(found) == batches:
                    break
            return found

        first = read(3)
        second = read(2)
        self.assertEqual(second[0], first[2], "the batch that was not committed comes again")
        self.assertFalse({tuple(place) for place in second[1][0]} & {tuple(place) for batch in first for place in batch[0]})
        third = read(1, commit=second[0][1])
        self.assertEqual(third[0], second[1], "a stored position is where it continues")
        lags = {known["name"]: known["lag"] for known in self.client.consumer.list()["consumers"]}
        self.assertGreater(lags["audit"], 0)

    def test_errors_have_their_class(self) -> None:
        with self.assertRaises(NotFound) as raised:
            self.client.session.get("none")
        error = raised.exception
        self.assertEqual((error.status, error.kind, error.retryable), (404, "no_session", False))
        self.assertIn("none", error.detail)
        with self.assertRaises(NotFound):
            next(self.client.session.events("no session/?", after="0"))
        with self.assertRaises(InvalidRequest):
            self.client.session.prompt("s", text=" ")
        with self.assertRaises(Unauthorized):
            with Client(self.server.url, "x" * 32) as stranger:
                stranger.session.list()
        with self.assertRaises(ConnectionFailed) as refused:
            Client("http://127.0.0.1:1", "x", retries=0).session.list()
        self.assertFalse(refused.exception.was_sent)
        with self.assertRaises(ValueError):
            Client("127.0.0.1:7878")

    def test_the_example_runs_as_it_is(self) -> None:
        example = pathlib.Path(__file__).resolve().parents[1] / "examples" / "ten_lines.py"
        lines = [line for line in example.read_text().splitlines()[1:] if line]
        self.assertLessEqual(len(lines), 10)
        environment = {**os.environ, "GREENROOM_URL": self.server.url, "GREENROOM_DATA_DIR": self.server.data}
        environment.pop("GREENROOM_TOKEN", None)
        ran = subprocess.run([sys.executable, str(example)], env=environment, stdout=subprocess.PIPE, check=True, text=True)
        self.assertRegex(ran.stdout, r"\w+.*\n\d+ step\(s\), \d+ entries\n$")


class Restarts(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.client = Client(self.server.url, self.server.token)

    def tearDown(self) -> None:
        self.client.close()
        self.server.close()

    def test_events_continue_after_a_restart(self) -> None:
        stream = self.client.events(after="0", durable=True)
        seen: t.List[int] = []
        changed = threading.Condition()

        def follow() -> None:
            for event in stream:
                if event["type"] not in ("gap", "problem"):
                    with changed:
                        seen.append(event["seq"])
                        changed.notify()

        reader = threading.Thread(target=follow)
        reader.start()
        last = -1
        for how in (signal.SIGKILL, signal.SIGTERM):
            entries = self.client.session.prompt("a", text="question")["run"]
            with changed:
                changed.wait_for(lambda: bool(seen) and seen[-1] > entries)
            self.server.stop(how)
            self.server.start()
        self.client.session.set_title("a", title="the end")
        last = self.client.session.get("a")["session"]["entries"] - 1
        with changed:
            self.assertTrue(changed.wait_for(lambda: last in seen, timeout=30), seen)
        stream.close()
        reader.join()
        self.assertEqual(seen, list(range(last + 1)))

    def test_a_prompt_survives_a_restart(self) -> None:
        numbers: t.List[int] = []
        restarts = [signal.SIGKILL, signal.SIGKILL]
        with self.client.session.prompt_stream("a", text="question") as stream:
            for event in stream:
                if event["type"] in ("gap", "problem"):
                    continue
                if "n" not in event:
                    numbers.append(event["seq"])
                if restarts and event["type"] == "tool_start":
                    self.server.stop(restarts.pop())
                    self.server.start()
            reply = stream.outcome()
        self.assertEqual((restarts, reply["stop"], reply["entry_id"]), ([], "stop", 0))
        self.assertEqual(numbers, list(range(len(numbers))))
        self.assertEqual(len(numbers), self.client.session.get("a")["session"]["entries"])


class Retries(unittest.TestCase):
    def check(
        self, answers: t.List[t.Any], call: t.Callable[[Client], t.Any], wanted: t.Any, requests: int
    ) -> t.List[t.Tuple[str, str, str]]:
        """Makes the call against a server that gives these answers; `wanted` is the answer or the error."""
        server = Scripted(list(answers))
        client = Client(server.url, "t", retries=2)
        try:
            try:
                answer = call(client)
            except GreenroomError as error:
                answer = type(error)
            self.assertEqual((answer, len(server.seen)), (wanted, requests))
            return server.seen
        finally:
            client.close()
            server.close()

    def test_only_what_is_safe_is_sent_again(self) -> None:
        ok = (200, {}, "{}")
        reads = lambda client: client.models.list()  # noqa: E731
        writes = lambda client: client.session.set_title("a", title="b")  # noqa: E731
        submits = lambda client: client.session.prompt_submit("a", text="b")  # noqa: E731
        self.check([refusal(503), refusal(429), ok], reads, {}, 3)
        self.check([refusal(503)] * 3, reads, Busy, 3)
        self.check([refusal(503), ok], writes, Busy, 1)
        self.check([None, ok], reads, {}, 2)
        self.check([None, ok], writes, ConnectionFailed, 1)
        bodies = [body for _, _, body in self.check([None, refusal(503), ok], submits, {}, 3)]
        self.assertEqual(len(set(bodies)), 1, "the key is the same")
        self.assertTrue(json.loads(bodies[0])["key"])
        self.check([refusal(500), ok], reads, ApiError, 1)
        self.check([(200, {}, "<html>proxy"), ok], reads, ConnectionFailed, 1)
        self.check([(502, {}, "<html>proxy"), ok], reads, type(ApiError.of(t.cast(t.Any, {**PROBLEM, "status": 502}))), 1)
        late = (503, {"Retry-After": "61"}, json.dumps({**PROBLEM, "status": 503}))
        self.check([late, ok], reads, Busy, 1)

    def test_a_stream_of_work_without_a_key_is_not_sent_again(self) -> None:
        events = {"Content-Type": "text/event-stream"}
        begun = (200, events, 'id: 1,1.0.a\nevent: accepted\ndata: {"accepted": true}\n\ndata: {"type": "x"')
        result = (200, events, 'event: result\ndata: {"installed":\ndata: true}\n\n')
        self.check([begun, result], lambda client: client.session.compact("a"), ConnectionFailed, 1)
        self.check([begun, result], lambda client: client.session.prompt("a", text="b"), {"installed": True}, 2)
        problem = (200, events, f"event: problem\ndata: {json.dumps({**PROBLEM, 'status': 409, 'kind': 'aborted'})}\n\n")
        seen = self.check([problem], lambda client: client.session.resume("a").__class__, self.of(409), 1)
        self.assertEqual(seen[0][:2], ("POST", "/v1/sessions/a/resume"))

    def test_what_is_in_the_url(self) -> None:
        call = lambda client: client.session.list(labels={"a": "b c", "d": "e"}, roots=True, limit=3)  # noqa: E731
        seen = self.check([(200, {}, "{}")], call, {}, 1)
        self.assertEqual(seen[0][1], "/v1/sessions?limit=3&label=a%3Ab+c&label=d%3Ae&roots=true")
        seen = self.check([(200, {}, "{}")], lambda client: client.session.get("a/b ?ö"), {}, 1)
        self.assertEqual(seen[0][1], "/v1/sessions/a%2Fb%20%3F%C3%B6")

    @staticmethod
    def of(status: int) -> t.Type[ApiError]:
        return type(ApiError.of(t.cast(t.Any, {**PROBLEM, "status": status})))


if __name__ == "__main__":
    unittest.main()
