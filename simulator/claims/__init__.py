"""Published figures held against what comes out: `hosim validate`, and what they hang on: `hosim sensitivity`."""
