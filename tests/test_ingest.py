"""The corpus path: what is read and what is set aside, that a second run adds nothing and a killed one goes on."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import serving
from test_run import wait_for

from rawrag_utils import corpus, index, ingest, lake, models, paths, retrieval, scale
from rawrag_utils.paths import BadInput

SETTINGS = {"PROFILE": "local", "CHUNK_SIZE": 64, "CHUNK_OVERLAP": 8}
ROWS = pa.schema(
    [("source", pa.string()), ("place", pa.string()), ("share", pa.float64())]
    + [("conversation", pa.binary()), ("reason", pa.string())]
)


def talk(name, turns=6, **changes):
    """A conversation in the own form."""
    told = [{"turn_id": f"D1:{i}", "speaker": "Nora", "text": f"{name} clay pot {i}"} for i in range(turns)]
    session = {"session": 1, "date": "2024-03-02", "turns": told}
    return {"conversation_id": name, "speaker_a": "Nora", "speaker_b": "Tobias", "sessions": [session]} | changes


def write_all(folder):
    """Conversations in files of each kind: faults among them, an id twice, and two files that cannot be read."""
    folder.mkdir(exist_ok=True)
    faulty = talk("bad", sessions=[])
    (folder / "a.json").write_text(json.dumps({"conversations": [talk("a1"), faulty, talk("a2"), talk("a1", 2)]}))
    (folder / "b.jsonl").write_text("\n".join([json.dumps(talk("b1")), "{cut", "", json.dumps(talk("b2"))]))
    (folder / "sub").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist([talk("c1"), talk("c2", 9)]), folder / "sub" / "c.parquet")
    (folder / "sub" / "d.json").write_text('{"conversations": [')
    (folder / "sub" / "e.parquet").write_bytes(b"PAR1 cut off")
    (folder / "sub" / "notes.txt").write_text("not looked at")
    (folder / "z.json").write_text(json.dumps({"conversations": [talk("a2", 3), talk("b1")]}))
    return folder


def vectors(texts):
    """A vector for each text, by its content alone."""
    made = np.array([[len(t), *(t.count(c) for c in "aeiou0123456789")] for t in texts], np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


@pytest.fixture
def stub(monkeypatch):
    """Vectors without a model, as `models.embed` gives them; the list of what was asked for."""
    asked = []

    def embed(embedder, texts, kind="document", cache=True):
        asked.extend(texts)
        return vectors(texts) if texts else np.zeros((0, 0), np.float32)

    monkeypatch.setattr(models, "embed", embed)
    return asked


def run(folder, place):
    """The corpus path in this process: what Ray's workers do, file after file, and what the writer does with it."""

    def passing():
        worker = ingest.Windows(str(place), SETTINGS)
        for path, source in ingest.files(folder):
            yield worker(pa.Table.from_pylist(list(ingest.read(path, source)), ROWS))

    tally = ingest.Tally()
    ingest._written(passing(), str(place), SETTINGS, tally, 1)
    return tally


# ------------------------------------------------------------------------------------------------------------- reading


def test_every_form_is_read_and_every_fault_has_its_place(tmp_path):
    found = [row for path, source in ingest.files(write_all(tmp_path / "in")) for row in ingest.read(path, source)]
    good = [(r["source"], json.loads(r["conversation"])["conversation_id"]) for r in found if r["conversation"]]
    assert good == [
        *(("a.json", "a1"), ("a.json", "a2"), ("b.jsonl", "b1"), ("b.jsonl", "b2")),
        *(("sub/c.parquet", "c1"), ("sub/c.parquet", "c2"), ("z.json", "a2"), ("z.json", "b1")),
    ]
    bad = {(r["source"], r["place"]): r["reason"] for r in found if r["reason"]}
    assert bad[("a.json", "conversations[1]")].startswith("sessions: is empty; put at least one in")
    assert bad[("a.json", "conversations[3]")] == "conversation_id 'a1' stands in the file twice"
    assert bad[("b.jsonl", "line 2")].startswith("top level: is not an object")
    assert "sub/d.json" not in bad and bad[("sub/d.json", "")].startswith("d.json: line 1, column 20 is not JSON")
    assert bad[("sub/e.parquet", "")].startswith("e.parquet: not a Parquet file that can be read")
    assert len(bad) == 5 and all("\n" not in reason for reason in bad.values())


def test_the_shares_of_a_file_s_conversations_are_its_size(tmp_path):
    for path, source in ingest.files(write_all(tmp_path / "in")):
        shares = [row["share"] for row in ingest.read(path, source)]
        assert sum(shares) == pytest.approx(os.path.getsize(path), rel=0.02)  # blank lines are nobody's


def test_a_parquet_row_is_the_conversation_that_its_json_is(tmp_path):
    one = talk("c")
    one["sessions"][0]["turns"][0]["caption"] = "a bowl"  # the others have none: null in their column
    pq.write_table(pa.Table.from_pylist([one]), tmp_path / "c.parquet")
    (tmp_path / "c.json").write_text(json.dumps({"conversations": [one]}))
    ((a,), (b,)) = (list(ingest.read(str(tmp_path / name), name)) for name in ("c.parquet", "c.json"))
    assert a["conversation"] == b["conversation"] is not None


def test_other_shapes_are_read_as_a_data_set_is(tmp_path):
    turn = {"speaker": "Nora", "dia_id": "D1:1", "text": "Hi"}
    held = {"speaker_a": "Nora", "speaker_b": "Tobias", "session_1": [turn], "session_1_date_time": "x"}
    (tmp_path / "l.json").write_text(json.dumps([{"sample_id": "conv-1", "conversation": held, "qa": []}]))
    (row,) = ingest.read(str(tmp_path / "l.json"), "l.json")
    assert json.loads(row["conversation"])["conversation_id"] == "locomo_0"


def test_what_cannot_be_opened_or_is_no_text_is_set_aside(tmp_path):
    (gone,) = ingest.read(str(tmp_path / "gone.jsonl"), "gone.jsonl")
    assert gone["reason"].startswith("gone.jsonl: cannot be read (No such file or directory); check")
    rows = pa.table({"conversation_id": pa.array([b"a", b"\xff"]).view(pa.string())})
    pq.write_table(rows, tmp_path / "c.parquet")
    *_, row = ingest.read(tmp_path / "c.parquet", "c.parquet")
    assert row["reason"].startswith("c.parquet: not a Parquet file that can be read ('utf-8' codec")
    if sys.platform == "linux":  # others have no such names
        os.rename(tmp_path / "c.parquet", os.fsencode(tmp_path) + b"/\xff.json")
        ((path, source),) = ingest.files(tmp_path)
        (row,) = ingest.read(path, source)
        assert source == "?.json" and row["reason"].startswith(r"\udcff.json: byte ")
        assert "is not UTF-8" in row["reason"]


def test_questions_are_not_looked_at(tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps(talk("c", questions=[{"question": ""}, 3])))
    (row,) = ingest.read(tmp_path / "q.jsonl", "q.jsonl")
    assert row["conversation"] and not row["reason"]


def test_a_folder_without_conversations_is_refused(tmp_path):
    for place in (tmp_path, tmp_path / "nosuch"):
        with pytest.raises(BadInput, match="no file in .json, .jsonl, .parquet, .srt, .vtt; name"):
            ingest.files(place)


# ------------------------------------------------------------------------------------------------------------- writing


def test_the_table_holds_what_the_notebooks_would_make_of_it(tmp_path, stub):
    tally = run(write_all(tmp_path / "in"), tmp_path / "w")
    table = lake.open_table(tmp_path / "w")
    assert tally.states == {"added": 6, "set aside": 6, "known": 1} and tally.windows == table.count_rows()
    twice = [f for f in tally.faults if f["source"] == "z.json"]
    assert twice[0]["place"] == "conversations[0]" and "'a2' is a.json's in the table" in twice[0]["reason"]
    own = corpus.load(str(tmp_path / "in" / "z.json")).conversations[1:]  # b1, which is the same in both
    built = index.build(own, lambda doc: ingest.chunking.cut(doc, 64, 8))
    built = index.with_vectors(built, vectors(index.contents(built)))
    read = lake.read_index(table, ["b1"])
    assert read["b1"]["chunks"] == built["b1"]["chunks"] and read["b1"]["turn_context"] == built["b1"]["turn_context"]
    assert (read["b1"]["embeddings"] == built["b1"]["embeddings"]).all()


CUES = "1\n00:00:01,000 --> 00:00:09,000\nStudent: Is it clay?\n\n2\n00:00:20,000 --> 00:00:29,000\n{} pots\n"


def test_subtitles_are_conversations_each_by_its_path(tmp_path, stub):
    folder = tmp_path / "in"
    for name in ("top.VTT", "week1/my talk.srt", "week2/my talk.srt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(CUES.format(name))
    (folder / "week1" / "broken.srt").write_text("no times")
    (folder / "week1" / "questions.json").write_text('{"questions": []}')
    (folder / "week1_my_talk.vtt").write_text(CUES.format("same id"))
    tally = run(folder, tmp_path / "w")
    assert tally.states == {"added": 3, "set aside": 2}
    broken, twin = tally.faults
    assert broken["source"] == "week1/broken.srt" and "give an SRT or VTT file" in broken["reason"]
    assert twin["source"] == "week1_my_talk.vtt" and "is week1/my talk.srt's in the table" in twin["reason"]

    read = lake.read_index(lake.open_table(tmp_path / "w"), ["top", "week1_my_talk", "week2_my_talk"])
    loaded = corpus.load(str(folder / "top.VTT")).conversations
    built = index.build(loaded, lambda doc: ingest.chunking.cut(doc, 64, 8))["top"]
    assert read["top"]["chunks"] == built["chunks"] and read["top"]["turn_context"] == built["turn_context"]
    assert "[00:20~00:29] week2/my talk.srt pots" in read["week2_my_talk"]["turn_context"]["turn_lines"]
    assert run(folder, tmp_path / "w").states == {"known": 3, "set aside": 2}


def test_empty_texts_and_missing_dates_are_no_fault_but_ids_no_file_may_have_are(tmp_path, stub):
    (tmp_path / "in").mkdir()
    said = [{"speaker": "Nora", "dia_id": f"D1:{i}", "text": ""} for i in range(40)]
    undated = [{"sample_id": "it's", "speaker_a": "Nora", "speaker_b": "Tobias", "session_1": said}]
    (tmp_path / "in" / "a.json").write_text(json.dumps(undated))
    (tmp_path / "in" / "b.json").write_text(json.dumps([undated[0] | {"session_1": []}]))
    ids = ("x" * 80, "x" * 81, "o'x", "")
    (tmp_path / "in" / "c.jsonl").write_text("\n".join(json.dumps(talk(name)) for name in ids))
    tally = run(tmp_path / "in", tmp_path / "w")
    assert tally.states == {"added": 2, "set aside": 4}
    assert "item 0 (it's) has no turns; remove it" in tally.faults[0]["reason"]
    assert [f["place"] for f in tally.faults] == ["", "line 2", "line 3", "line 4"]
    table, asked = lake.open_table(tmp_path / "w"), vectors(["clay"])
    question = corpus.Question("q", "locomo_0", "clay", None, "temporal", (), ())
    assert len(lake.search(table, [question], asked)) > 1
    assert lake.search(table, [question], asked, dates={"q": ("2000-01-01", None)}).empty


def test_a_second_run_adds_nothing_and_a_changed_conversation_is_replaced(tmp_path, stub):
    folder, place = write_all(tmp_path / "in"), tmp_path / "w"
    run(folder, place)
    before, version = lake.open_table(place).count_rows(), lake.open_table(place).version
    stub.clear()
    tally = run(folder, place)
    assert not stub and tally.windows == 0 and tally.states == {"known": 7, "set aside": 6}
    assert lake.open_table(place).count_rows() == before and lake.open_table(place).version <= version + 1  # tidied

    pq.write_table(pa.Table.from_pylist([talk("c1", 60), talk("c2", 9)]), folder / "sub" / "c.parquet")
    tally = run(folder, place)
    assert tally.states == {"known": 6, "replaced": 1, "set aside": 6}
    ids = lake.open_table(place).to_arrow().column("chunk_id").to_pylist()
    assert len(ids) == len(set(ids)) == before - 2 + tally.windows  # c1 was two windows


@pytest.mark.parametrize("moment", ["before the second commit", "after it"])
def test_a_killed_run_goes_on_and_leaves_what_one_run_leaves(tmp_path, stub, monkeypatch, moment):
    folder = write_all(tmp_path / "in")
    run(folder, tmp_path / "whole")
    monkeypatch.setattr(ingest, "COMMIT_BYTES", 1)  # a commit a conversation
    write, commits = lake.write, []

    def killed(table, conversations, replaced=()):
        if len(commits) == 1 and moment == "after it":
            write(table, conversations, replaced)
        if len(commits) == 1:
            raise KeyboardInterrupt
        commits.append(len(conversations))
        write(table, conversations, replaced)

    monkeypatch.setattr(lake, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "w")
    monkeypatch.setattr(lake, "write", write)
    tally = run(folder, tmp_path / "w")
    assert tally.states["added"] == (5 if moment == "before the second commit" else 4)
    a, b = (lake.open_table(tmp_path / n).to_arrow().sort_by("chunk_id") for n in ("whole", "w"))
    assert a.equals(b)


def test_what_came_before_a_failure_is_kept(tmp_path, stub, monkeypatch):
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.json").write_text(json.dumps({"conversations": [talk(name)]}))
    embed = models.embed

    def failing(embedder, texts, **options):
        if any("c clay" in text for text in texts):
            raise BadInput("gave vectors that are not finite")
        return embed(embedder, texts, **options)

    monkeypatch.setattr(models, "embed", failing)
    with pytest.raises(BadInput, match="not finite"):
        run(tmp_path / "in", tmp_path / "w")
    monkeypatch.setattr(models, "embed", embed)
    assert run(tmp_path / "in", tmp_path / "w").states == {"known": 2, "added": 1}


def test_a_table_deleted_during_a_run_is_one_line(tmp_path, stub, monkeypatch):
    monkeypatch.setattr(ingest, "COMMIT_BYTES", 1)
    write, commits = lake.write, []

    def deleted(table, conversations, replaced=()):
        write(table, conversations, replaced)
        if not commits:
            shutil.rmtree(tmp_path / "w.lance")
        commits.append(len(conversations))

    monkeypatch.setattr(lake, "write", deleted)
    folder = write_all(tmp_path / "in")
    with pytest.raises(BadInput, match="table w: cannot be .*; free space, .* delete it; then run") as caught:
        run(folder, tmp_path / "w")
    assert "\n" not in str(caught.value) and ".rs:" not in str(caught.value)
    assert run(folder, tmp_path / "w").states == {"added": 6, "known": 1, "set aside": 6}


def test_no_space_is_one_line_and_the_next_run_goes_on(tmp_path, stub):
    folder, limits = write_all(tmp_path / "in"), resource.getrlimit(resource.RLIMIT_FSIZE)
    lake.make_table(tmp_path / "w", SETTINGS, vectors(["a"]).shape[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))  # the system itself refuses larger files
    try:
        with pytest.raises(BadInput, match="table w: cannot be written .*File too large") as caught:
            run(folder, tmp_path / "w")
        with pytest.raises(BadInput, match="table w_set_aside: cannot be written"):
            lake.set_aside(tmp_path / "w", [{"source": "a", "place": "b", "reason": "c"}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value) and not lake.open_table(tmp_path / "w").count_rows()
    assert run(folder, tmp_path / "w").states == {"added": 6, "known": 1, "set aside": 6}


def test_settings_of_another_run_are_refused(tmp_path, stub):
    run(write_all(tmp_path / "in"), tmp_path / "w")
    with pytest.raises(BadInput, match="made with CHUNK_SIZE 64, now 32; choose another table"):
        ingest.Windows(str(tmp_path / "w"), {**SETTINGS, "CHUNK_SIZE": 32})


def test_a_table_that_another_run_writes_to_is_refused_in_one_line(tmp_path, capsys):
    place = tmp_path / "lake" / "w"
    with lake.writing(place):
        assert scale.main(["corpus", str(write_all(tmp_path / "in")), str(place)]) == 2
    assert capsys.readouterr().err == "error: w: another run is writing to it; wait for it, then run again\n"
    with (
        lake.writing(place),
        lake.writing(tmp_path / "lake" / "other"),
        lake.writing("s3://b/w"),
        lake.writing("s3://b/w"),
    ):
        pass  # free again; other tables are not held, and an object store holds none


def test_what_decides_a_window_s_vector_is_among_the_settings_of_a_table():
    e5, multilingual = ingest.encoder("e5"), ingest.encoder("multilingual")
    assert e5["document_prompt"] == "passage: " and multilingual["tokenizer_sha256"] and not e5["tokenizer_sha256"]
    assert len(ingest.encoder("qwen3")["weights"]) == 40  # a commit of the hub


def test_a_table_is_not_searched_by_an_encoder_that_changed_since(tmp_path, capsys):
    place = tmp_path / "w"
    lake.make_table(place, {**ingest.encoder("local"), **SETTINGS, "max_length": 256}, 384)
    assert scale.main(["search", str(place), "clay"]) == 2
    assert "made with max_length 256, now 512; choose another table" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------- over Ray


@pytest.fixture
def server():
    """An OpenAI-compatible embedding server that answers with `vectors`, while `server.open` is set."""

    def answer(texts):
        instance.open.wait(240)
        data = [{"object": "embedding", "index": i, "embedding": v.tolist()} for i, v in enumerate(vectors(texts))]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return 200, {}, {"object": "list", "model": "m", "data": data, "usage": usage}

    with serving(answer, lambda body: body["input"]) as instance:
        instance.open = threading.Event()
        instance.open.set()
        yield instance
        instance.open.set()


def start(tmp_path, server, *arguments):
    """`python -m rawrag_utils.scale …` as a user calls it."""
    told = {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_API_KEY": "none"}
    told |= {"NO_PROXY": "127.0.0.1", "RAWRAG_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "rawrag_utils.scale", *map(str, arguments)]
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | told
    told_us = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return psutil.Popen(command, cwd=paths.ROOT, env=environment, start_new_session=True, **told_us)


def scaled(*arguments):
    """(exit status, stdout, stderr) of what `start` starts."""
    process = start(*arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def test_a_folder_over_ray_into_a_table_and_searched_though_stopped_once(tmp_path, server):
    folder, place = write_all(tmp_path / "in"), tmp_path / "lake" / "w"
    corpus_of = ("corpus", folder, place, "--profile", "textemb3", "--workers", "2")
    server.open.clear()
    process = start(tmp_path, server, *corpus_of)
    wait_for(lambda: server.asked or process.poll() is not None, 240)
    below = process.children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal
    out, err = process.communicate(timeout=240)
    said = [line for line in err.splitlines() if " core_worker.cc:" not in line]  # Ray's own, of its actors' arguments
    assert (process.returncode, out, said) == (130, "", ["stopped; what is finished is kept, run again to go on"])
    assert len(below) > 3 and not psutil.wait_procs(below, 60)[1]
    server.open.set()

    status, out, err = scaled(tmp_path, server, *corpus_of)
    assert status == 1, err  # something was set aside
    assert out.startswith("conversations: 6 added, 1 known, 6 set aside; windows added: ")
    assert "set aside: z.json conversations[0]: conversation_id 'a2' is a.json's in the table" in out
    table = lake.open_table(place)
    assert lake.set_aside(place)[0]["source"] == "a.json" and len(lake.set_aside(place)) == 6
    assert table.count_rows() == 6 and not (tmp_path / "cache" / "vectors").exists()
    part = lake.read_index(table, ["c2"])
    question = corpus.Question("q", "c2", "c2 clay pot 8", None, "temporal", (), ())
    asked = vectors([question.text])
    found, wanted = lake.search(table, [question], asked), retrieval.dense(part, [question], asked, 15)
    assert found.equals(wanted) and len(found) == 1

    status, out, err = scaled(tmp_path, server, "search", place, "c2 clay pot", "--from", "2024-03-01", "--top", "2")
    assert status == 0 and len(out.splitlines()) == 3 and "_chunk_0" in out, err
    status, out, err = scaled(tmp_path, server, "search", place, "clay", "--to", "2024-03-01")
    assert status == 0 and out == "no window matches the filter\n", err


def test_faults_of_all_are_one_line(tmp_path, capsys):
    assert scale.main(["corpus", str(tmp_path), str(tmp_path / "w")]) == 2
    assert scale.main(["corpus", str(tmp_path), str(tmp_path / "w"), "--size", "8", "--overlap", "8"]) == 2
    assert scale.main(["search", str(tmp_path / "w"), "clay"]) == 2
    assert scale.main(["index", str(tmp_path / "w")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 and "no file in .json" in lines[0] and "the overlap must be" in lines[1]
    assert "no such table; make it with" in lines[2] and "no such table" in lines[3]
