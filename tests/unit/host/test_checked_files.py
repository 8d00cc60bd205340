"""Small files whose damage shows."""

from __future__ import annotations

import msgspec
import pytest

from host.runtime.checked_files import checked, read_checked, write_checked
from protocol.errors import CorruptState


@pytest.mark.parametrize("content", [b"", b"x", bytes(1000)])
def test_what_was_written_is_read(tmp_path, content):
    write_checked(tmp_path / "file", content)
    assert read_checked(tmp_path / "file") == content
    assert (tmp_path / "file").read_bytes() == checked(content)


def test_no_flipped_bit_is_believed(tmp_path):
    content = msgspec.msgpack.encode((b"name", 7, True))
    held = checked(content)
    for at in range(8 * len(held)):
        damaged = bytearray(held)
        damaged[at // 8] ^= 1 << at % 8
        (tmp_path / "file").write_bytes(damaged)
        try:
            read = read_checked(tmp_path / "file")
        except CorruptState:
            continue
        with pytest.raises(msgspec.MsgspecError):  # The mark: it is no content either.
            msgspec.msgpack.decode(read, type=tuple[bytes, int, bool])


@pytest.mark.parametrize("kept", [4, 11, 12, 15])
def test_a_file_that_ends_early_is_refused(tmp_path, kept):
    (tmp_path / "file").write_bytes(checked(b"content")[:kept])
    with pytest.raises(CorruptState, match="checksum"):
        read_checked(tmp_path / "file")


def test_a_file_from_before_there_were_checksums_is_read_as_it_is(tmp_path):
    content = msgspec.msgpack.encode((1, 2))
    (tmp_path / "file").write_bytes(content)
    assert read_checked(tmp_path / "file") == content
