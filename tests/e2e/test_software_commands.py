"""Software profiles on the command line."""

import chain
import pytest

pytestmark = pytest.mark.usefixtures("pictures_are_blank")


def test_commands_take_software(hosim, tmp_path):
    path = chain.write(tmp_path)
    assert "\nsoftware: best case: pinned copies, best kernels (no software named)\n" in hosim("run", path).out
    assert "\nsoftware: llama_cpp: llama.cpp with " in hosim("run", path, "--software", "llama_cpp").out
    assert "\nsoftware: llama_cpp: llama.cpp with " in hosim("run", path, "--set", "software=llama_cpp").out
    assert hosim("check", "vllm").out.startswith("vllm: software for *: ok")
    assert "pinned_double_buffered  for *" in hosim("list", "software").out
    assert '"const": "hosim/software/1"' in hosim("schema", "software").out
    refused = hosim("run", path, "--software", "gh200_only")
    assert (refused.code, "a software document has a name in the catalogue" in refused.err) == (1, True)
