"""Results for people: tables, sentences, pictures, pages, and the output folder.

`words` writes numbers; `readings` reads traces. `tables` makes columns and aligned
text, `sentences` sums up a run. A sweep is shown by a `SweepView` (`views`), which `grids`, `uncertain` (draws) and
`answers` (questions, limits) compose. `pictures` and `timeline` draw with the elements of `drawing`; `html` and
`perfetto` write files for browsers and trace viewers. `card` describes models, machines and layouts, `decisions` a
plan; `changes` compares two results, `expectations` judges one, and `files` fills the output folder.
"""
