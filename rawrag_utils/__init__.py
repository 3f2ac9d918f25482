"""Raw-RAG as a laboratory: the thin module that the numbered notebooks share.

Data flows one way, and a module imports only from those before it: ``paths`` -> ``store`` -> ``own_form`` ->
``dialogue`` -> ``foreign`` -> ``subtitle_files`` -> ``subtitles`` -> ``lectures`` -> ``corpus`` -> ``chunking`` ->
``index`` -> ``packed`` -> ``weights`` -> ``models`` -> ``rerankers`` -> ``retrieval`` -> ``cues`` ->
``generation`` -> ``endpoint`` -> ``llm`` -> ``templates`` -> ``prompts`` -> ``scores`` -> ``metrics`` ->
``queries`` -> ``notes`` -> ``timewords`` -> ``answering`` -> ``timed`` -> ``citations`` -> ``derived`` ->
``judges`` -> ``evaluation`` -> ``results`` -> ``findings`` -> ``tables`` -> ``figures`` -> ``report`` -> ``desk`` ->
``strips`` -> ``views`` -> ``inspector`` -> ``execution`` -> ``run`` -> ``grid`` -> ``lake`` -> ``ingest`` ->
``scale``. Nothing heavy is imported until a function needs it.
"""

__version__ = "0.1.0"
