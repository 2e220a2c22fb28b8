"""A real browser for tests: Chromium without a window, driven over the DevTools protocol through two pipes. Standard library
only.

`Browser` is one process with a profile of its own that is thrown away; `Browser.open` gives a `Page`. Nothing here sleeps to
wait for a state. The browser reaches 127.0.0.1 only.
"""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-shell", "google-chrome")
SECONDS = 60
FLAGS = ("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-extensions", "--disable-sync", "--disable-background-networking", "--disable-component-update",
         "--disable-default-apps", "--allow-pre-commit-input", "--disable-features=DropInputEventsBeforeFirstPaint", "--no-proxy-server", "--mute-audio", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")


def program():
    """The browser's path, or None."""
    named = os.environ.get("ISOTHERM_BROWSER")
    return named or next(filter(None, map(shutil.which, PROGRAMS)), None)


def pipe():
    """(read, write), both numbered so high that the shell's redirections cannot hit them."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high


class Browser:
    """A context manager."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="isotherm-browser-", ignore_cleanup_errors=True)
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        theirs_in, self.to_browser = pipe()
        self.from_browser, theirs_out = pipe()
        # The protocol's pipes are the descriptors 3 and 4.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", program(), *FLAGS, f"--user-data-dir={self.folder.name}"],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
            env={**os.environ, "HOME": self.folder.name})
        os.close(theirs_in)
        os.close(theirs_out)
        self.last_id, self.rest, self.events = 0, b"", []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
        self.folder.cleanup()
        self.log.close()

    def receive(self, deadline, what):
        """The next message; `what` is waited for."""
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.from_browser], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self.from_browser, 1 << 20) if ready else b""
            if not data:
                self.log.seek(0)
                raise RuntimeError(f"{what}: {'the browser is gone' if ready else 'nothing came'}; it said:\n{self.log.read()[-4000:]}")
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params, **({"sessionId": session} if session else {})}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to_browser, data):]
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.receive(deadline, method)
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def wait_event(self, method, session):
        """Takes the first event of that kind out of what has come or will come."""
        deadline = time.monotonic() + SECONDS
        while True:
            for event in self.events:
                if event["method"] == method and event.get("sessionId") == session:
                    self.events.remove(event)
                    return event["params"]
            message = self.receive(deadline, method)
            if "method" in message:
                self.events.append(message)

    def open(self, url, width=1000, height=800):
        return Page(self, url, width, height)


class Page:
    """One tab. `problems` lists what its console has to complain about."""

    def __init__(self, browser, url, width, height):
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.resize(width, height)
        self.call("Page.navigate", url=url)
        browser.wait_event("Page.loadEventFired", self.session)
        # What is typed before the first picture is there gets lost.
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression):
        """Polls until the expression is true, and returns its value."""
        deadline = time.monotonic() + SECONDS
        while True:
            value = self.evaluate(expression)
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {SECONDS} s: {expression}; the page says: {self.evaluate('document.body.innerText')!r}")
            time.sleep(0.01)

    def problems(self):
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return found

    # ---- a user's hands

    def type(self, text):
        """Into what has the focus. Text and keys go different ways to the page: it is there before this returns."""
        self.call("Input.insertText", text=text)
        self.wait(f"document.activeElement.value.endsWith({json.dumps(text)})")

    def press_enter(self, shift=False):
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def click(self, selector):
        x, y = self.evaluate(f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                             "return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for what in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=what, x=x, y=y, button="left", clickCount=1)

    # ---- requests held on their way

    def hold(self, pattern):
        """From now on, requests to addresses like this wait for `let_go` or `answer`."""
        self.call("Fetch.enable", patterns=[{"urlPattern": pattern}])

    def held(self):
        """The next held request: its id and body."""
        try:
            params = self.browser.wait_event("Fetch.requestPaused", self.session)
        except RuntimeError as late:
            raise AssertionError(f"no request came; the page says: {self.evaluate('document.body.innerText')!r}, the field "
                                 f"{self.evaluate('document.activeElement.value')!r}") from late
        return params["requestId"], json.loads(params["request"].get("postData", "null"))

    def let_go(self, request, body):
        self.call("Fetch.continueRequest", requestId=request, postData=base64.b64encode(json.dumps(body).encode()).decode())

    def answer(self, request, status, content_type, body):
        self.call("Fetch.fulfillRequest", requestId=request, responseCode=status,
                  responseHeaders=[{"name": "Content-Type", "value": content_type}], body=base64.b64encode(body.encode()).decode())
