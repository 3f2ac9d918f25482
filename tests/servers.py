"""Servers on this machine's loopback that answer as a test says, and a chat model whose answers follow the prompt."""

import contextlib
import http.server
import json
import random
import threading
import zlib

KEY = "sk-planted-0123456789"


class Handler(http.server.BaseHTTPRequestHandler):
    """`server.replies` are functions body -> (status, headers, content), used up first to last; then `server.rule`.

    Status 0 hangs up, a header that is None is not sent. Content is bytes, an iterator of bytes that are sent as they
    come (then no length is stated), or else what becomes JSON.
    """

    protocol_version = "HTTP/1.1"
    wbufsize, disable_nagle_algorithm = -1, True  # else headers and body wait for each other

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "null")
        with server.guard:
            server.asked.append(server.noted(body))
            server.keys.append(self.headers["Authorization"])
            reply = server.replies.pop(0) if server.replies else server.rule
        status, headers, content = reply(server.noted(body))
        pieces, length = content, None
        if not hasattr(content, "__next__"):
            pieces = [content if isinstance(content, bytes) else json.dumps(content).encode()]
            length = len(pieces[0])
        self.close_connection = not status or "Content-Length" in headers or length is None
        if status:
            self.send_response(status)
            sent = {"Content-Type": "application/json", "Content-Length": length, "x-request-id": KEY} | headers
            for name, value in sent.items():
                if value is not None:
                    self.send_header(name, str(value))
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()

    do_GET = do_POST

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def running(handler, **attributes):
    """A server with a handler of its own on a free port, until the block ends; `attributes` become the server's."""
    instance = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    instance.handle_error, instance.block_on_close = lambda *arguments: None, False
    for name, value in attributes.items():
        setattr(instance, name, value)
    thread = threading.Thread(target=instance.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield instance
    finally:
        instance.shutdown()
        thread.join()
        instance.server_close()


def serving(rule, noted=lambda body: body):
    """`running` a server that answers by `rule`: `asked` (what `noted` makes of each body), `keys` and `replies`."""
    return running(Handler, rule=rule, noted=noted, asked=[], keys=[], replies=[], guard=threading.Lock())


def completion(text, prompt_tokens, completion_tokens):
    """A chat completion as OpenAI's API has it."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": usage | {"total_tokens": prompt_tokens + completion_tokens},
    }


def pretended(body):
    """A reply in the form that the prompt asks for. Its words are the prompt's own, drawn by prompt and seed alone."""
    system, user = (body["messages"][i]["content"] for i in (0, -1))
    draw = random.Random(zlib.crc32(json.dumps([body["messages"], body["seed"]]).encode()))
    kinds = ("factual", "conceptual", "procedural", "comparative", "exploratory")
    if '"label"' in system:
        text = json.dumps({"reasoning": "so", "label": draw.choice(("CORRECT", "WRONG"))})
    elif '"type"' in system:
        text = json.dumps({"type": draw.choice(kinds), "confidence": round(draw.random(), 2), "reasoning": "so"})
    else:
        words = user.split()
        lines = (draw.sample(words, min(len(words), draw.randint(2, 9))) for _ in range(5))
        text = "\n".join(f"[2024-0{n}-11] {' '.join(line)}" for n, line in enumerate(lines, 1))
    return 200, {}, completion(text, len(system + user), len(text))
