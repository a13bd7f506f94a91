"""Results for eyes: tables, sentences, pictures, pages, and the folder that they are written into.

`rows` is what a report is told of a row, and how its numbers are written; everything else shows rows. `tables` and
`views` write text, `decisions` and `layout_text` tell a plan and a job, `sentences` says what a person would,
`pictures` and `timeline` draw on the canvas of `drawing`, `html` and `perfetto` write what other programs show,
`changes` compares two results, `expectations` judges one, and `files` fills the output folder.
"""
