"""Results for eyes: tables, sentences, pictures, pages, and the folder that they are written into.

`rows` has what a report knows of a row, and writes numbers; `readings` reads traces. `tables` makes columns and
aligned text, `sentences` says what a person would of a run. A sweep is shown by a `SweepView` (`views`), which `grids`,
`uncertain` (draws) and `answers` (questions, limits) compose. `pictures` and `timeline` draw on the canvas of
`drawing`; `html` and `perfetto` write what other programs show. `card` and `decisions` tell a model with its layout,
and a plan, `changes` compares two results, `expectations` judges one, and `files` fills the output folder.
"""
