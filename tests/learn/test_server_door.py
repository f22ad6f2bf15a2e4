"""Who may come in: other sites, other names, other users and other paths may not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from learner import Browser, make_assets, make_lessons, running

NOTE = "/api/notes/sample/first"
BODY = {"text": "x", "base_revision": 0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("door")
    make_assets(folder / "page")
    make_lessons(folder / "content")
    (folder / "secret.txt").write_text("the secret")
    (folder / "page" / "outside").symlink_to(folder / "secret.txt")
    return folder


@pytest.fixture(scope="module")
def browser(place: Path) -> Iterator[Browser]:
    hosts = ("hub.example.org", "Lab.example.org:444")
    with running(place / "n.db", place / "page", place / "content", allow_hosts=hosts, once="just-once") as browser:
        yield browser


# The token ------------------------------------------------------------------------------------------------------------


def test_the_link_gives_a_cookie_and_takes_the_token_out_of_the_address(browser):
    status, headers, content = browser.call("GET", "/?token=the-token", headers={"Cookie": None})
    assert status == 200
    assert headers["set-cookie"] == f"{browser.cookie}; HttpOnly; SameSite=Strict; Path=/"
    assert 'http-equiv="refresh" content="0; url=./"' in content.decode()
    assert "the-token" not in content.decode()
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_browsers_own_link_opens_once(browser):
    first, again = (browser.call("GET", "/?token=just-once", headers={"Cookie": None}) for _ in range(2))
    assert (first[0], again[0]) == (200, 403)
    assert browser.cookie in first[1]["set-cookie"]
    assert browser.call("GET", "/?token=", headers={"Cookie": None})[0] == 403


def test_odd_cookies_of_other_programs_do_no_harm(browser):
    cookies = f'a:b="[;x]=,"; expires=1; {browser.cookie}; {browser.cookie[:-1]}'
    assert browser.call("GET", "/config.json", headers={"Cookie": cookies})[0] == 200


@pytest.mark.parametrize(
    "cookie",
    [
        None,
        "",
        "other=1",
        "qkv_learn_1=the-token",
        "{name}=",
        "{name}=wrong",
        "{name}=the-token-and-more",
        ";;=,\u00e9",
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/?token=wrong"),
        ("GET", "/index.html"),
        ("GET", "/assets/main.js"),
        ("GET", "/py/plain.py"),
        ("GET", "/config.json"),
        ("GET", "/api/notebook"),
        ("GET", "/api/export"),
        ("PUT", NOTE),
        ("POST", "/api/import"),
        ("DELETE", "/api/cases/x"),
    ],
)
def test_nothing_without_the_token(browser, method, path, cookie):
    sent = None if cookie is None else cookie.format(name=f"qkv_learn_{browser.port}")
    body = BODY if method in ("PUT", "POST") else None
    status, headers, content = browser.call(method, path, body, {"Cookie": sent})
    assert status == 403
    assert b"open that link" in content
    assert "set-cookie" not in headers


# Host and Origin ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{}", "localhost:{}", "LOCALHOST:{}", "hub.example.org", "hub.example.org:81"]
)
def test_names_of_this_server(browser, host):
    host = host.format(browser.port)
    assert browser.call("GET", "/config.json", headers={"Host": host})[0] == 200
    sent: dict[str, str | None] = {"Host": host, "Origin": f"https://{host}"}
    assert browser.call("PUT", "/api/bookmarks/sample/first", {"on": True}, sent)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.org",  # DNS rebinding: a name of the attacker's that points to 127.0.0.1
        "evil.example.org:{}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1.evil.example.org:{}",
        "localhost:{}.evil.example.org",
        "xhub.example.org",
        "hub.example.org.evil.org",
        "lab.example.org",  # allowed with another port
        "lab.example.org:445",
        "0.0.0.0:{}",
        "",
        None,
    ],
)
def test_other_names_are_refused_token_or_not(browser, host):
    sent = None if host is None else host.format(browser.port)
    status, _, content = browser.call("GET", "/api/notebook", headers={"Host": sent})
    # Without a Host, HTTP itself refuses.
    assert status == (400 if sent is None else 403)
    assert sent is None or b"not one of this server" in content
    assert browser.call("GET", "/?token=the-token", headers={"Host": sent, "Cookie": None})[0] == status


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example.org",
        "http://127.0.0.1:1",
        "http://127.0.0.1",
        "http://127.0.0.1:{}.evil.example.org",
        "http://evil.example.org/127.0.0.1:{}",
        "http://user@127.0.0.1:{}",
        "file://127.0.0.1:{}",
        "null",
        "",
    ],
)
@pytest.mark.parametrize(("method", "path"), [("PUT", NOTE), ("GET", "/api/notebook"), ("DELETE", "/api/cases/x")])
def test_other_origins_are_refused(browser, method, path, origin):
    body = BODY if method == "PUT" else None
    status, _, content = browser.call(method, path, body, {"Origin": origin.format(browser.port)})
    assert status == 403
    assert b"is not this server's page" in content


def test_what_changes_something_says_its_origin(browser):
    assert "say its Origin" in browser.refused(403, "PUT", NOTE, BODY, Origin=None)
    assert "say its Origin" in browser.refused(403, "DELETE", "/api/cases/x", Origin=None)


# What every answer carries --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cookie", ["right", None])
@pytest.mark.parametrize(
    "path", ["/", "/?token=the-token", "/assets/main.js", "/none", "/api/none", "/api/lessons.json"]
)
def test_every_answer_carries_the_rules(browser, path, cookie):
    _, headers, _ = browser.call("GET", path, headers={} if cookie else {"Cookie": None})
    rules = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert rules["default-src"] == "'self'"
    assert rules["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert rules["worker-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["object-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe-inline" not in headers["content-security-policy"]
    assert "'unsafe-eval'" not in headers["content-security-policy"]
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-embedder-policy"] == "require-corp"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers
    if path.startswith("/api"):
        assert headers["cache-control"] == "no-store"


def test_a_preflight_from_elsewhere_is_refused(browser):
    sent: dict[str, str | None] = {"Origin": "http://evil.example.org", "Access-Control-Request-Method": "PUT"}
    assert browser.call("OPTIONS", NOTE, headers=sent)[0] == 403


def test_a_refusal_quotes_no_markup(browser):
    _, _, content = browser.call("GET", "/", headers={"Host": "<script>alert(1)</script>"})
    assert b"<script" not in content


# Paths ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/assets/../../secret.txt",
        "/assets/%2e%2e/%2e%2e/secret.txt",
        "/assets/..%2f..%2fsecret.txt",
        "/..%5csecret.txt",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/outside",
        "/py/../config.py",
        "/py/..%2fcli%2fmain.py",
        "/py/%2e%2e%2fplain.py",
        "/assets/main.js%00.html",
        "/%00",
        "/" + "a/" * 3000,
        "/" + "a" * 5000,
    ],
)
def test_no_path_leads_out(browser, path):
    status, _, content = browser.call("GET", path)
    assert status == 404, content
    assert b"the secret" not in content
    assert b"root:" not in content


@pytest.mark.parametrize("name", ["..", "%2e%2e", "A", "a%00", "a" * 300, "%F0%9F%98%80"])
def test_no_name_of_a_lesson_leads_out(browser, name):
    browser.refused(404, "GET", f"/api/lessons/{name}.json")
    assert browser.call("PUT", f"/api/notes/{name}/first", BODY)[0] in (404, 405)


def test_only_this_machine_is_listened_to(browser):
    """The port on any other address of this machine is closed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; the address is reserved for documentation
            here = probe.getsockname()[0]
        except OSError:
            here = "127.0.0.2"
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex((here, browser.port)) != 0
