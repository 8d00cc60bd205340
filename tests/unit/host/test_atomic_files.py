"""Files are replaced as a whole; what is no file stays what it is."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from host.runtime.atomic_files import replace_file, replacing


def test_a_file_keeps_what_it_had_where_writing_fails(tmp_path):
    path = tmp_path / "settings.toml"
    replace_file(path, b"former")
    with pytest.raises(OSError, match="full"), replacing(path) as partial:  # noqa: PT012
        partial.write_bytes(b"half")
        raise OSError("the disk is full")
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_written_to_and_stays(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    replace_file(pipe, b"report")
    reader.join()
    assert read == [b"report"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]
