"""What a chat model writes about a lecture when it is indexed: a summary and questions for each segment.

This is work at index time, which Raw-RAG does without: it is measured as arms beside the raw index and kept apart from
it. An index made here is never written to a file and holds no vectors until they are asked for. Questions that a
passage answers, made beforehand, are HyDE the other way round; the idea is that of doc2query (arXiv 1904.08375).
"""

from rawrag_utils import chunking, llm, prompts


def requests(corpus):
    """The `llm.Request`s for all segments, one a language: a dict of language to (places of its segments, request).

    A place is (conversation_id, turn index). A segment is shown with what is said just before and after it.
    """
    places, chats = {}, {}
    for conversation in corpus.conversations:
        texts = [prompts.fenced(chunking.turn_line(turn, dates=False)) for turn in conversation.turns]
        language = prompts.language("".join(texts))
        template = prompts.template("note_lecture", language)
        around = zip(["", *texts[:-1]], texts, [*texts[1:], ""], strict=True)
        for turn, (before, passage, after) in enumerate(around):
            places.setdefault(language, []).append((conversation.conversation_id, turn))
            asked = prompts.messages(template, before=before, passage=passage, after=after)
            chats.setdefault(language, []).append(asked)
    sampling = {language: prompts.template("note_lecture", language)[-2:] for language in places}
    return {name: (places[name], llm.Request(chats[name], *sampling[name])) for name in places}


def write(chat, corpus):
    """({conversation_id: a list of `prompts.Note`, one a turn, None where unreadable}, all `llm.Completion`s)."""
    notes = {c.conversation_id: [None] * len(c.turns) for c in corpus.conversations}
    completions = []
    for places, request in requests(corpus).values():
        example = request.prompts[0][0]["content"]  # a small model may repeat it: not about this segment
        for (name, turn), (completion,) in zip(places, llm.complete(chat, request), strict=True):
            note = prompts.note(completion.text)
            if note and not {note.summary, *note.questions} & set(_told(example)):
                notes[name][turn] = note
            completions.append(completion)
    return notes, completions


def _told(example):
    note = prompts.note(example[example.rindex("\n\n") :])
    return [note.summary, *note.questions]


def with_summaries(index, notes):
    """A copy of an index of segments (`chunking.turn_windows`) in which each window begins with its summary."""
    return {
        name: {
            **part,
            "chunks": [
                {**chunk, "content": f"{note.summary}\n{chunk['content']}"} if note and note.summary else chunk
                for chunk, note in zip(part["chunks"], notes[name], strict=True)
            ],
        }
        for name, part in index.items()
    }


def of_questions(index, notes):
    """An index whose windows are the questions about each segment, in place of its text; all touch that segment.

    A segment without questions stands for itself. A ranking of this index becomes one of segments by
    `retrieval.by_turn`.
    """
    return {
        name: {
            **part,
            "chunks": [
                {**chunk, "chunk_id": f"{name}_chunk_{number}", "chunk_index": number, "content": text}
                for number, (chunk, text) in enumerate(_asked(part["chunks"], notes[name]))
            ],
        }
        for name, part in index.items()
    }


def _asked(chunks, notes):
    for chunk, note in zip(chunks, notes, strict=True):
        for text in note.questions if note and note.questions else (chunk["content"],):
            yield chunk, text
