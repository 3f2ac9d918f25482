"""Raw-RAG as a laboratory: the thin module that the numbered notebooks share.

Data flows one way: ``paths`` -> ``corpus`` -> ``chunking`` -> ``index`` -> ``models`` -> ``retrieval`` ->
``metrics`` -> ``results`` -> ``run``. A module imports only from those before it, and nothing heavy is imported
until a function needs it.
"""

__version__ = "0.1.0"
