"""One question to a chat model behind an OpenAI-compatible endpoint, and what can go wrong there as one line each.

No word of a server's error reaches a message: servers echo keys, and what is printed ends up in executed notebooks.
"""

import os
import re

from rawrag_utils import chunking, models
from rawrag_utils.paths import BadInput

KEPT = "what was answered before is kept, run again to go on"


def base_url():
    """The server that the environment names, None for OpenAI's own."""
    return os.environ.get("OPENAI_BASE_URL", "").strip() or None


def client(config):
    """An openai client for a profile's `chat` block. Raises `BadInput` without a key, or where it cannot be sent."""
    key = os.environ.get(config.key_variable, "").strip()
    if not key:
        raise BadInput(
            f"{config.model}: {config.key_variable} is not set; export it (any value for a server without keys)"
        )
    if not (key.isascii() and key.isprintable()):
        raise BadInput(f"{config.model}: {config.key_variable} holds characters that no key has; export it again")
    url = config.base_url or base_url()
    if url and not re.fullmatch(r"https?://[^@\s]+", url):
        raise BadInput(f"{config.model}: OPENAI_BASE_URL is no address (http://…, no key in it); export it again")
    return models.openai_client(api_key=key, base_url=url, timeout=_timeout(config))


def _timeout(config):
    return config.timeout or models.TIMEOUT


def ask(config, client, messages, request):
    """((text, prompt tokens, completion tokens, finish), retries) of one call; the client itself waits and retries.

    An answer without text (a content filter held it back, thinking took all tokens) is an empty text of that finish.
    Raises `BadInput` for everything else that is no answer.
    """
    import openai

    sampling = {"max_tokens": request.max_tokens, "temperature": request.temperature, "seed": request.seed}
    try:
        raw = client.chat.completions.with_raw_response.create(
            model=config.model, messages=messages, extra_body=config.extra_body or None, **sampling
        )
        return _read(raw.parse(), messages), raw.retries_taken
    except openai.OpenAIError as error:
        reason = _reason(config, error)
    except models.MALFORMED:
        reason = "the endpoint's answer is no chat completion"
    raise BadInput(f"{config.model}: {reason}; {KEPT}")  # out here, so that the server's words are not its context


def _read(answer, messages):
    choice, usage = answer.choices[0], answer.usage
    text, finish = choice.message.content or "", choice.finish_reason
    if not (isinstance(text, str) and finish in ("stop", "length", "content_filter")):
        raise ValueError("no text")
    text = text.encode("utf-8", "replace").decode()  # half an emoji, where the limit on tokens cut it, is no text
    if usage is None:
        return text, sum(_tokens(m["content"]) for m in messages), _tokens(text), finish
    return text, int(usage.prompt_tokens), int(usage.completion_tokens), finish


def _tokens(text):
    """cl100k's count, where the endpoint states none."""
    return len(chunking.encoding().encode_ordinary(text))


def _reason(config, error):
    """What went wrong and the remedy, without the server's words."""
    import openai

    code = getattr(error, "code", None)
    if isinstance(error, openai.APITimeoutError):
        return f"the endpoint did not answer within {_timeout(config):g} s, {models.RETRIES + 1} times"
    if isinstance(error, openai.APIConnectionError):
        return "the endpoint is not reached or hangs up; check OPENAI_BASE_URL, the profile's base_url and the server"
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        return f"the endpoint refused the key ({error.status_code}); check the key's variable"
    if isinstance(error, openai.NotFoundError):
        return "the endpoint does not know the model (404); check model and base_url of the profile or OPENAI_BASE_URL"
    if isinstance(error, openai.RateLimitError):
        credit = ", no credit left" if code == "insufficient_quota" else ""
        return f"the endpoint allows no more requests for now (429{credit})"
    # OpenAI and vLLM say "maximum context length", llama.cpp "available context size"; their codes differ more.
    if isinstance(error, openai.BadRequestError) and re.search("context.(length|size)", f"{code} {error}"):
        return "a prompt is longer than the endpoint's context; hand over fewer windows (TOP_K)"
    return f"the endpoint failed ({type(error).__name__} {getattr(error, 'status_code', '')})".replace(" )", ")")
