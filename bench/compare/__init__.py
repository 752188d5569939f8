"""The comparison with other queues: fifteen aspects, three yes-or-no questions each.

`questions.py` has the questions, `answers.toml` the answers with their sources, `experiments.py`
the experiments that check them, `page.py` writes the tables of docs/comparison.md.
"""
