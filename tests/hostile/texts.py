"""Hostile prompts and parameters of the diffusion flavour, and hostile query and headers."""

from __future__ import annotations

from tests.hostile.attack import DIFFUSION, WORKFLOW, Attack, diffusion, easy, get, post

_BODY = {"prompt": easy()}
_LONG = 32_000


def _query(name: str, **query: str) -> Attack:
    return post(name, WORKFLOW, _BODY, **query)


def _header(name: str, **headers: str) -> Attack:
    sent = post(name, WORKFLOW, _BODY)
    return Attack(name, sent.path, sent.content, headers=headers)


def _many_edits(count: int) -> str:
    return " ".join(f"[a{number}:b{number}:{number / count:.3f}]" for number in range(count))


ATTACKS: tuple[Attack, ...] = (
    diffusion("a number of 32,000 digits", prompt="a:" + "1" * _LONG + "x"),
    diffusion("a weight of 32,000 digits", prompt="(a:" + "1" * _LONG + ")"),
    diffusion("a number of 32,000 points", prompt="(a:" + "1." * (_LONG // 2) + ")"),
    diffusion("an edit at 32,000 digits", prompt="[a:b:" + "9" * _LONG + "]"),
    diffusion("95 edits", prompt=_many_edits(95), steps=150),
    diffusion("1,000 edits", prompt=_many_edits(1000), steps=150),
    diffusion("1,000 edits, one in another", prompt="[a:" * 1000 + "b" + ":0.5]" * 1000, steps=20),
    diffusion("16,000 alternatives", prompt="[" + "a|" * 15_000 + "b]", steps=20),
    diffusion("30,000 open brackets", prompt="(" * _LONG),
    diffusion("15,000 pairs of brackets", prompt="(" * 15_000 + "a" + ")" * 15_000),
    diffusion("15,000 square brackets", prompt="[" * 15_000 + "a" + "]" * 15_000),
    diffusion("30,000 backslashes", prompt="\\" * _LONG),
    diffusion("30,000 colons", prompt="(" + ":" * _LONG + ")"),
    diffusion("30,000 spaces", prompt="(a" + " " * _LONG + ":1)"),
    diffusion("8,000 AND", prompt="a AND " * 5_000 + "b"),
    diffusion("6,000 BREAK", prompt="BREAK " * 5_000),
    diffusion("4,000 lora", prompt="<lora:x:1>" * 3_000),
    diffusion("a lora of 30,000 characters", prompt="<lora:" + "x:" * 15_000),
    diffusion("30,000 open angles", prompt="<" * _LONG),
    diffusion("an embedding outside the folder", prompt="embedding:../../../../etc/passwd"),
    diffusion("escapes and line ends", prompt="\x1b[2J\r\nlevel=ERROR forged\0"),
    diffusion("long texts on both sides", prompt="a, " * 10_000, negative_prompt="b, " * 10_000),
    diffusion("the largest of everything", width=4096, height=4096, batch_size=16, steps=150),
    diffusion(
        "a second pass of 4096 squared",
        width=512,
        height=512,
        enable_hr=True,
        hr_resize_x=4096,
        hr_resize_y=4096,
        hr_second_pass_steps=150,
        steps=150,
        batch_size=16,
    ),
    diffusion("a width of 10**300", width=10**300),
    diffusion("a seed below every seed", seed=-(10**30)),
    diffusion("a batch of -1", batch_size=-1),
    diffusion("null for text and size", prompt=None, width=None, height=None, steps=1),
    diffusion("null for the steps", steps=None),
    diffusion("20,000 unknown members", **{f"m{number}": number for number in range(20_000)}),
    diffusion("a list for each text", prompt=["a"] * 50_000, negative_prompt=["b"] * 10_000),
    post("a list as body", DIFFUSION, [1] * 100_000),
    _query("an endpoint of 8,000 characters", endpoint="x" * 8_000),
    _query("an endpoint outside the queue", endpoint="default.*.>"),
    _query("an endpoint with NUL", endpoint="a\0b"),
    _query("a callback to metadata", callback_url="http://169.254.169.254/latest"),
    _query("a callback to the service's NATS", callback_url="http://[::ffff:127.0.0.1]:4222/"),
    _query("a callback of 6,000 characters", callback_url="http://example.com/" + "a" * 6_000),
    _query("a callback with line ends", callback_url="http://example.com/\r\nX: y"),
    _header("an Idempotency-Key of 4,000 characters", **{"Idempotency-Key": "k" * 4_000}),
    _header("a traceparent of 4,000 characters", traceparent="00-" + "f" * 4_000),
    _header("an Idempotency-Key of commas", **{"Idempotency-Key": ",;=" * 80}),
    get(
        "a result wait that is not a number",
        "/workflow/v1/result",
        request_id="x" * 4_000,
        wait="nan",
    ),
    get("a cursor of 4,000 characters", "/v1/jobs", cursor="A" * 4_000, limit="100"),
    get("a limit of 4,000 digits", "/v1/jobs", limit="9" * 4_000),
)
