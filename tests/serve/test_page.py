#!/usr/bin/env python3
"""The page at / in a real browser: what a user sees, types and clicks. On a tiny model.

Needs Chromium (tools/deps test installs it; $ISOTHERM_BROWSER names another one); without it the test skips, loudly.
"""
import json
import re
import sys
import tempfile
import unittest

import browser
from harness import SKIPPED, Server, ServerCase, main, tiny_model

if not browser.program():
    print("SKIPPED, NOT TESTED: the page in a browser, because no Chromium is here (tools/deps test installs it)", flush=True)
    sys.exit(SKIPPED)

CHAT = "*/v1/chat/completions"
IDLE = "document.querySelector('#send').textContent === 'Send'"
# Boxes of what was said, by the user and by the model, as they are seen.
TURNS = "[...document.querySelectorAll('.turn')].map(box => box.innerText)"
LAST = "[...document.querySelectorAll('.turn')].pop()"
FACTS = "[...document.querySelectorAll('.facts')].map(box => box.innerText)"


def stream(*pieces, ends=True):
    """A reply as the server sends it."""
    chunks = [{"choices": [{"index": 0, "delta": {"content": p}, "finish_reason": None}], "usage": None} if isinstance(p, str) else p
              for p in pieces]
    return "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + ("data: [DONE]\n\n" if ends else "")


def setUpModule():
    global chromium
    chromium = browser.Browser()


def tearDownModule():
    chromium.__exit__()


class PageCase(unittest.TestCase):
    expected = ()  # complaints that a test provokes

    def open(self, server, **size):
        page = chromium.open(f"http://127.0.0.1:{server.port}/", **size)
        self.addCleanup(self.finish, page)
        page.wait("document.activeElement.id === 'text'")  # where a user starts to type
        return page

    def finish(self, page):
        problems = [p for p in page.problems() if not any(e in p for e in self.expected)]
        page.close()
        self.assertEqual(problems, [])

    def send(self, page, text):
        page.type(text)
        page.press_enter()

    def say(self, page, text, **fields):
        """Sends a message whose request gets these fields on its way, and waits for the whole reply."""
        page.hold(CHAT)
        self.send(page, text)
        request, body = page.held()
        page.let_go(request, {**body, **fields})
        page.wait(IDLE)
        return body


class Chatting(PageCase, ServerCase):
    FLAGS = ("--alias", "tiny-alias")
    FIELDS = {"max_tokens": 40, "ignore_eos": True, "temperature": 0}

    def test_it_loads_without_a_complaint_and_names_the_model(self):
        page = self.open(self.server)
        page.wait("document.querySelector('#model').textContent === 'tiny-alias'")
        self.assertEqual(page.evaluate("document.title"), "Isotherm")
        self.assertEqual(page.evaluate("getComputedStyle(document.querySelector('#key')).display"), "none")

    def test_a_message_gets_a_reply(self):
        page = self.open(self.server)
        self.send(page, "Hello, who is there?")
        page.wait(f"{FACTS}.length === 1 && {IDLE}")
        turns = page.evaluate(TURNS)
        self.assertEqual(turns[0], "Hello, who is there?")
        self.assertEqual(len(turns), 2)
        self.assertEqual(page.evaluate("document.querySelector('#text').value"), "")
        self.assertEqual(page.evaluate("document.activeElement.id"), "text")

    def test_a_reply_grows_as_it_comes(self):
        page = self.open(self.server)
        page.evaluate("window.lengths = new Set(); new MutationObserver(() => { const box = " + LAST + ";"
                      "if (box && !box.classList.contains('user')) lengths.add(box.textContent.length); })"
                      ".observe(document.querySelector('#log'), {childList: true, subtree: true, characterData: true}); 0")
        self.say(page, "Tell me something long.", **{**self.FIELDS, "max_tokens": 1900})
        self.assertGreater(page.evaluate("lengths.size"), 2)  # empty, whole, and something between

    def test_the_reply_is_what_the_server_says(self):
        want = self.server.chat("The same question.", **self.FIELDS)["choices"][0]["message"]["content"]
        page = self.open(self.server)
        body = self.say(page, "The same question.", **self.FIELDS)
        self.assertEqual(body["messages"], [{"role": "user", "content": "The same question."}])
        self.assertEqual(page.evaluate(LAST + ".textContent"), want)

    def test_a_second_turn_sends_the_first_and_shows_what_it_reused(self):
        page = self.open(self.server)
        self.say(page, "A question about the old stone bridge and its lanterns.", **self.FIELDS)
        reply = page.evaluate(LAST + ".textContent")
        body = self.say(page, "And then?", **self.FIELDS)
        self.assertEqual([m["role"] for m in body["messages"]], ["user", "assistant", "user"])
        self.assertEqual(body["messages"][1]["content"], reply)
        first, second = (re.match(r"reused (\d+) of (\d+) prompt tokens", f) for f in page.evaluate(FACTS))
        self.assertGreaterEqual(int(second[1]), (int(first[2]) + 39) // 16 * 16)
        self.assertGreater(page.evaluate("[...document.querySelectorAll('.bar i')].pop().getBoundingClientRect().width"), 0)

    def test_a_new_chat_forgets(self):
        page = self.open(self.server)
        self.say(page, "One.", **self.FIELDS)
        page.click("#fresh")
        self.assertEqual(page.evaluate(TURNS), [])
        self.assertEqual(page.evaluate("document.activeElement.id"), "text")
        self.assertEqual(len(self.say(page, "Two.", **self.FIELDS)["messages"]), 1)

    def test_enter_sends_and_shift_enter_breaks_the_line(self):
        page = self.open(self.server)
        page.hold(CHAT)
        page.press_enter()  # nothing is not sent
        page.type("two")
        page.press_enter(shift=True)
        page.type("lines")
        self.assertEqual(page.evaluate(TURNS), [])
        page.press_enter()
        request, body = page.held()
        self.assertEqual(body["messages"][-1]["content"], "two\nlines")
        # A second message is not sent into the first one's reply.
        self.send(page, "too early")
        self.assertEqual(len(page.evaluate(TURNS)), 2)
        page.answer(request, 200, "text/event-stream", stream("yes"))
        page.wait(IDLE)
        self.assertEqual(page.evaluate(TURNS), ["two\nlines", "yes"])

    def test_the_button_sends_and_stops(self):
        page = self.open(self.server)
        page.hold(CHAT)
        page.type("a question")
        page.click("#send")
        page.held()
        self.assertEqual(page.evaluate("document.querySelector('#send').textContent"), "Stop")
        self.assertTrue(page.evaluate("document.querySelector('#fresh').disabled"))
        page.click("#send")
        page.wait(IDLE)
        self.assertEqual(page.evaluate("document.querySelectorAll('.error').length"), 0)

    def test_text_is_never_markup(self):
        evil = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script><b>bold</b> &amp; </div>"
        page = self.open(self.server)
        page.hold(CHAT)
        self.send(page, evil)
        request, body = page.held()
        self.assertEqual(body["messages"][0]["content"], evil)
        page.answer(request, 200, "text/event-stream", stream(evil[:10], evil[10:]))
        page.wait(IDLE)
        self.assertEqual(page.evaluate(TURNS), [evil, evil])
        self.send(page, "again")
        page.answer(page.held()[0], 400, "application/json", json.dumps({"error": {"message": evil}}))
        page.wait(IDLE)
        self.assertEqual(page.evaluate(LAST + ".textContent"), evil)
        self.assertEqual(page.evaluate("document.querySelectorAll('.turn *').length"), 0)
        self.assertEqual(page.evaluate("typeof window.hacked"), "undefined")
        self.expected = ("status of 400",)

    def test_a_failure_is_shown_and_not_kept(self):
        self.expected = ("status of 429",)
        page = self.open(self.server)
        page.hold(CHAT)
        error = {"error": {"message": "The queue is full.", "type": "rate_limit_error", "param": None, "code": None}}
        for status, kind, body, want in ((429, "application/json", json.dumps(error), "The queue is full."),
                                         (429, "text/html", "<h1>busy</h1>", "HTTP 429"),
                                         (200, "text/event-stream", stream("half", error, ends=False), "half\n\nThe queue is full."),
                                         (200, "text/event-stream", stream("half", ends=False), "half\n\nThe reply broke off.")):
            self.send(page, "a question")
            request, sent = page.held()
            self.assertEqual(len(sent["messages"]), 1)
            page.answer(request, status, kind, body)
            page.wait(IDLE)
            self.assertEqual(page.evaluate(LAST + ".textContent"), want)
            self.assertTrue(page.evaluate(LAST + ".classList.contains('error')"))

    def test_a_narrow_window_needs_no_sideways_scrolling(self):
        page = self.open(self.server, width=320, height=568)
        page.wait("document.querySelector('#model').textContent === 'tiny-alias'")
        page.evaluate("document.querySelector('#key').hidden = false")  # as where keys are needed
        page.hold(CHAT)
        self.send(page, "x" * 400 + " and " + "words " * 40)
        page.answer(page.held()[0], 200, "text/event-stream", stream("y" * 400 + "\n" + "  code " * 50))
        page.wait(IDLE)
        self.say(page, "Once more, for the line below.", **self.FIELDS)
        page.evaluate("document.querySelector('#model').textContent = 'm'.repeat(100)")
        for width in (320, 260, 1000):
            page.resize(width, 568)
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            self.assertLessEqual(page.evaluate("document.querySelector('#log').scrollWidth - document.querySelector('#log').clientWidth"), 0)
            outside = page.evaluate("[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)"
                                    ".map(e => e.tagName + '#' + e.id)")
            self.assertEqual(outside, [])
            # The form stays in sight, whatever was said.
            self.assertLessEqual(page.evaluate("document.querySelector('#form').getBoundingClientRect().bottom"), 568.5)


class Servers(PageCase):
    def test_a_server_that_is_gone_is_said(self):
        self.expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
        with Server(tiny_model(), "--context", "32768") as server:
            page = self.open(server)
            page.hold(CHAT)
            self.send(page, "Go on for ever.")
            request, body = page.held()
            page.let_go(request, {**body, "ignore_eos": True, "max_tokens": 30000, "temperature": 0})
            page.wait(LAST + ".textContent.length > 20")
            server.kill()
            page.wait(IDLE)
            text = page.evaluate(LAST + ".textContent")
            self.assertRegex(text, r"(?s).{20}.*\n\nThe server cannot be reached\.$")
            self.send(page, "Still there?")
            request, body = page.held()
            self.assertEqual(len(body["messages"]), 1)
            page.let_go(request, body)
            page.wait(IDLE)
            self.assertEqual(page.evaluate(LAST + ".textContent"), "The server cannot be reached.")
            self.assertTrue(page.evaluate(LAST + ".classList.contains('error')"))

    def test_a_key_is_asked_for_where_one_is_needed(self):
        self.expected = ("status of 401",)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("sk-page-0123456789\n")
            file.flush()
            with Server(tiny_model(), "--alias", "tiny-alias", "--api-key-file", file.name) as server:
                page = self.open(server)
                page.wait("document.querySelector('#model').textContent === 'needs an API key'")
                self.send(page, "Hello")
                page.wait(IDLE)
                self.assertIn("A valid API key is needed", page.evaluate(LAST + ".textContent"))
                page.click("#key")
                page.type("sk-page-0123456789")
                page.click("#text")
                page.wait("document.querySelector('#model').textContent === 'tiny-alias'")
                self.say(page, "Hello", max_tokens=4)
                self.assertEqual(len(page.evaluate(FACTS)), 1)


if __name__ == "__main__":
    main()
