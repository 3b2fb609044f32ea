"""A real browser: `EventSource` goes on where it was cut off, and `/docs` needs nobody else.

Chromium without a window, driven over its DevTools protocol.  Where there is none, these tests are
skipped; `.ci/run` installs it.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.checkout import ROOT
from tests.support.proxy import Proxy

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

SECONDS_MAX = 60.0
RECORDS = 400

# What a page does: every record it hears of is kept, with how the connection fared.
FOLLOW = """
  window.heard = []; window.opened = 0; window.failed = 0; window.kinds = {};
  const source = new EventSource(URL);
  source.onopen = () => { window.opened += 1; };
  source.onerror = () => { window.failed += 1; };
  for (const kind of ["record", "tombstone", "topic-deleted", "error"])
    source.addEventListener(kind, event => {
      if (!event.data) return;
      window.kinds[kind] = (window.kinds[kind] || 0) + 1;
      const data = JSON.parse(event.data);
      for (const record of data.records || [])
        window.heard.push([data.topic, record.$seq, record.data]);
    });
  window.source = source;
"""


class Page:
    """A tab, driven over the DevTools protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.requests: list[str] = []
        self.complaints: list[object] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(SECONDS_MAX))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        kind, params = event["method"], event["params"]
        if kind == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"])
        elif kind == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"])
        elif kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(params["args"])

    def run(self, script: str) -> Any:
        """The value of a script; a promise is awaited."""
        done = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def go(self, url: str) -> None:
        self.requests.clear()
        self.complaints.clear()
        self.call("Page.navigate", url=url)
        self.wait(f'location.href === "{url}" && document.readyState === "complete"')

    def wait(self, condition: str) -> None:
        """Until the script is true."""
        deadline = time.monotonic() + SECONDS_MAX
        while not self.run(condition):
            assert time.monotonic() < deadline, (condition, self.complaints)
            time.sleep(0.02)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Chromium's DevTools."""
    home = tmp_path_factory.mktemp("chromium")
    assert CHROMIUM is not None
    with open(home / "log", "wb") as log:
        process = subprocess.Popen(
            [
                CHROMIUM,
                "--headless=new",
                "--no-sandbox",  # a container has no other user to change to
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-default-apps",
                "--disable-sync",
                "--no-first-run",
                "--no-proxy-server",
                "--remote-debugging-port=0",
                f"--user-data-dir={home}",
                "about:blank",
            ],
            env={**os.environ, "HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield devtools(home, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def devtools(home: Path, process: subprocess.Popen[bytes]) -> str:
    """Chromium writes its port, and the path of its socket, to a file."""
    port_file = home / "DevToolsActivePort"
    deadline = time.monotonic() + SECONDS_MAX
    while not (port_file.exists() and port_file.read_text().count("\n")):
        assert process.poll() is None, (home / "log").read_text()[-2_000:]
        assert time.monotonic() < deadline, (home / "log").read_text()[-2_000:]
        time.sleep(0.05)
    port, path = port_file.read_text().split()
    return f"ws://127.0.0.1:{port}{path}"


@pytest.fixture
def page(browser: str) -> Iterator[Page]:
    """A new tab."""

    def ask(socket: ClientConnection, method: str, **params: object) -> Any:
        socket.send(json.dumps({"id": 1, "method": method, "params": params}))
        while (message := json.loads(socket.recv(SECONDS_MAX))).get("id") != 1:
            pass
        return message["result"]

    with connect(browser, max_size=None, proxy=None) as root:
        target = ask(root, "Target.createTarget", url="about:blank")["targetId"]
        address = browser.partition("/devtools/")[0] + f"/devtools/page/{target}"
        with connect(address, max_size=None, proxy=None) as socket:
            yield Page(socket)
        ask(root, "Target.closeTarget", targetId=target)


def follow(page: Page, url: str, topics: list[str], **body: object) -> str:
    """Open a watch in the page, as its own script would; returns the wid."""
    page.go(f"{url}/docs")
    named = json.dumps({"topics": {topic: {} for topic in topics}, **body})
    how = {"method": "POST", "headers": {"content-type": "application/json"}, "body": named}
    session = page.run(f"fetch('/v0/watch', {json.dumps(how)}).then(answer => answer.json())")
    page.run(FOLLOW.replace("URL", json.dumps(session["stream_url"])))
    return str(session["wid"])


def heard(page: Page) -> list[Any]:
    return list(page.run("window.heard"))


def check_all(page: Page, expected: list[Any]) -> None:
    """Everything once, in order, and nothing else."""
    page.wait(f"window.heard.length >= {len(expected)}")
    time.sleep(0.3)  # for what should not come
    assert heard(page) == expected
    assert page.run("window.kinds.tombstone") is None


def test_a_cut_connection_is_resumed(servers, server, page, topic) -> None:
    """The browser reconnects by itself, with the last id it heard."""
    speak = servers.speaker(server, "h1")
    speak.append(topic, "first")
    expected = [[topic, 1, "first"]]
    with Proxy(server.host, server.port) as proxy:
        follow(page, proxy.url, [topic])
        check_all(page, expected)
        for round_ in range(1, 4):
            proxy.cut()
            for number in range(RECORDS // 3):  # some while it is away, some when it is back
                seq = speak.append(topic, number)["first_seq"]
                expected.append([topic, seq, number])
            page.wait(f"window.opened > {round_}")
            seq = speak.append(topic, "back")["first_seq"]
            expected.append([topic, seq, "back"])
            check_all(page, expected)
        # Cut in the middle of records, at any byte.
        for number in range(RECORDS):
            seq = speak.append(topic, number)["first_seq"]
            expected.append([topic, seq, number])
            if number == RECORDS // 2:
                proxy.cut()
        check_all(page, expected)
        assert page.run("window.opened") >= 5
        page.run("window.source.close()")


def test_a_lost_id_is_told_by_the_browser(servers, server, page, topic) -> None:
    """Frames that were sent and never arrived come again: `Last-Event-ID` lowers the cursor."""
    speak = servers.speaker(server, "h1")
    with Proxy(server.host, server.port) as proxy:
        speak.append(topic, 0)
        wid = follow(page, proxy.url, [topic])
        check_all(page, [[topic, 1, 0]])
        proxy.cut()
        # Another reader of the same session moves its cursor past what the page has heard.
        speak.append(topic, 1, 2, 3)
        with speak.stream(f"/v0/watch/{wid}") as other:
            assert other.next("record").data["to_seq"] == 4
        check_all(page, [[topic, seq + 1, seq] for seq in range(4)])
        page.run("window.source.close()")


def test_several_topics_of_one_stream(servers, server, page, topic) -> None:
    speak = servers.speaker(server, "h1")
    names = [f"{topic}-{n}" for n in range(3)]
    for name in names:
        speak.append(name, "first")
    with Proxy(server.host, server.port) as proxy:
        follow(page, proxy.url, names)
        page.wait("window.heard.length === 3")
        for number in range(60):
            for name in names:
                speak.append(name, number)
            if number % 20 == 10:
                proxy.cut()
        page.wait(f"window.heard.length >= {3 * 61}")
        found = heard(page)
        for name in names:
            assert [[seq, data] for who, seq, data in found if who == name] == [
                [1, "first"],
                *[[number + 2, number] for number in range(60)],
            ]
        page.run("window.source.close()")


def test_a_restarted_server_is_a_new_session(servers, page, topic, tmp_path) -> None:
    """Sessions live in memory: the browser is told 404 and stops, and a new watch goes on.

    The page gives the last id that it heard as `cursor`, and misses nothing.
    """
    first = servers.start(tmp_path)
    with Proxy(first.host, first.port) as proxy:
        speak = servers.speaker(first, "h1")
        speak.ok("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})
        speak.append(topic, 0, 1, 2)
        follow(page, proxy.url, [topic])
        check_all(page, [[topic, n + 1, n] for n in range(3)])
        page.run("window.source.addEventListener('caught-up', e => window.last = e.lastEventId)")
        speak.append(topic, 3)
        page.wait("window.last && window.heard.length === 4")
        first.kill()
        second = servers.start(tmp_path)
        proxy.target = second.host, second.port
        servers.speaker(second, "h1").append(topic, 4, 5)
        page.wait("window.source.readyState === EventSource.CLOSED")
        assert len(heard(page)) == 4
        before = heard(page)
        last = page.run("window.last")
        follow(page, proxy.url, [topic], cursor=last)
        page.wait("window.heard.length >= 2")
        assert before + heard(page) == [[topic, n + 1, n] for n in range(6)]
        page.run("window.source.close()")


def test_the_script_of_the_page_about_resuming(servers, page, tmp_path) -> None:
    """What docs/reference/http.md shows rides over a restart, and hears each record once."""
    text = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    script = text.partition("```js\n")[2].partition("```")[0]
    first = servers.start(tmp_path)
    with Proxy(first.host, first.port) as proxy:
        speak = servers.speaker(first, "h1")
        speak.ok("PUT", "/v0/topics/orders", {"durability": "fsync"})
        speak.append("orders", 0, 1)
        page.go(f"{proxy.url}/docs")
        page.run("window.seen = []; window.show = data => seen.push(...data.records); 0")
        page.run(f"{script}\n0")
        page.wait("window.seen.length === 2")
        first.kill()
        second = servers.start(tmp_path)
        proxy.target = second.host, second.port
        speak = servers.speaker(second, "h1")
        speak.append("orders", 2, 3)
        page.wait("window.seen.length >= 4")
        speak.append("orders", 4)
        page.wait("window.seen.length >= 5")
        assert page.run("seen.map(record => record.data)") == [0, 1, 2, 3, 4]


# What a page of this server may do, and a page of another one may not.

TALK = """
  new Promise((resolve, reject) => {
    const said = [];
    const socket = new WebSocket(URL);
    socket.onerror = () => resolve(["refused"]);
    socket.onopen = () => {
      socket.send(JSON.stringify({op: "publish", topic: TOPIC, records: [{data: 1}]}));
    };
    socket.onmessage = event => {
      const message = JSON.parse(event.data);
      said.push(message.op);
      if (message.op === "ack" && said.length === 1)
        socket.send(JSON.stringify({op: "subscribe", topic: TOPIC}));
      if (message.op === "caught_up") { socket.close(); resolve(said); }
    };
  })
"""


def talk(page: Page, server: Any, topic: str) -> list[str]:
    url = f"ws://{server.address}/v0/ws"
    script = TALK.replace("URL", json.dumps(url)).replace("TOPIC", json.dumps(topic))
    return list(page.run(script))


def test_a_websocket_of_the_same_origin(server, page, topic) -> None:
    page.go(f"{server.url}/docs")
    assert talk(page, server, topic) == ["ack", "subscribed", "record", "caught_up"]


def test_a_page_of_another_origin_changes_nothing(servers, server, page, topic) -> None:
    """It can send what needs no permission to be asked for, and none of that is done."""
    speak = servers.speaker(server, "h1")
    other = servers.start()
    page.go(f"{other.url}/v0/health")  # another port is another origin; this page has no policy
    assert talk(page, server, topic) == ["refused"]
    body = json.dumps({"records": [{"data": 1}]})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
        how = {"method": "POST", "mode": "no-cors", "body": body, "headers": {"content-type": kind}}
        page.run(
            f"fetch({json.dumps(f'{server.url}/v0/topics/{topic}')}, {json.dumps(how)})"
            ".then(() => 1, () => 0)"
        )
    assert speak("GET", f"/v0/topics/{topic}").status == 404
    read = f"fetch({json.dumps(f'{server.url}/v0/topics')}).then(a => a.text(), () => 'refused')"
    assert page.run(read) == "refused"


def test_the_docs_page(server, page) -> None:
    """It shows every operation, without an error, and asks no other host for anything."""
    page.go(f"{server.url}/docs")
    paths = page.run("fetch('/openapi.json').then(r => r.json()).then(d => Object.keys(d.paths))")
    assert "/v0/topics/{topic}/diff" in paths
    page.wait(f"document.body.innerText.includes({json.dumps(paths[-1])})")
    text = page.run("document.body.innerText")
    assert [path for path in paths if path not in text] == []
    assert page.complaints == []
    asked = [url for url in page.requests if not url.startswith("data:")]
    assert len(asked) >= 4, asked
    assert [url for url in asked if not url.startswith(f"{server.url}/")] == []


@pytest.mark.parametrize("width", [390, 700])
def test_the_docs_page_on_a_small_screen(server, page, width) -> None:
    """Nothing is wider than the screen, and no name is broken into letters."""
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=800, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    page.go(f"{server.url}/docs#append")
    page.wait("document.querySelector('#append td code') !== null")
    assert page.run("document.documentElement.scrollWidth") <= width
    lines = "[...document.querySelectorAll('#append td:first-child code')].map(c => c.offsetHeight)"
    assert 0 < max(page.run(lines)) < 40
    hidden_by = "document.elementFromPoint(30, r.top + 10)"
    path = "const r = document.querySelector('#append summary').getBoundingClientRect();"
    assert page.run(f"{{ {path} {hidden_by}.closest('#append') !== null }}")


def test_the_docs_page_of_the_websocket(server, page) -> None:
    """It names the commands, and offers no curl that cannot work."""
    page.go(f"{server.url}/docs#websocket")
    page.wait("document.querySelector('#websocket .inside') !== null")
    text = page.run("document.querySelector('#websocket').innerText")
    assert "curl" not in text
    for op in ("subscribe", "unsubscribe", "publish", "ping"):
        assert f'"op":"{op}"' in text
